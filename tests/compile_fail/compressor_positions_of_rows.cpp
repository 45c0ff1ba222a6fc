// Entries that stay in memory have no prompt that a codec could be fitted to.
// expect-error: \[kvtl\] compressor: keys that are kept apart from values, records that several entries share, and codecs that
// expect-errors: 1
// SPDX-License-Identifier: MIT
#include <kvtl/policies/compress_prompt_svd.hpp>
#include <kvtl/presets/full.hpp>

struct bad : kvtl::presets::full {
    static constexpr std::uint32_t window_tokens = 32;
    using compressor = kvtl::prompt_svd<>;
};

template class kvtl::kv_manager<bad>;
