// A type that has nothing of a policy gets one sentence, in every slot, also where nothing reads it.
// expect-error: \[kvtl\] clusterer: add `static constexpr std::string_view name` and what slots/clusterer.hpp lists
// expect-error: \[kvtl\] index: add `static constexpr std::string_view name` and what slots/index.hpp lists
// expect-error: \[kvtl\] selector: add `static constexpr std::string_view name` and what slots/selector.hpp lists
// expect-error: \[kvtl\] estimator: add `static constexpr std::string_view name` and what slots/estimator.hpp lists
// expect-error: \[kvtl\] budget: add `static constexpr std::string_view name` and what slots/budget.hpp lists
// expect-error: \[kvtl\] compressor: add `static constexpr std::string_view name` and what slots/compressor.hpp lists
// expect-error: \[kvtl\] position: add `static constexpr std::string_view name` and what slots/position.hpp lists
// expect-error: \[kvtl\] layout: add `static constexpr std::string_view name` and what slots/layout.hpp lists
// expect-error: \[kvtl\] replacement: add `static constexpr std::string_view name` and what slots/replacement.hpp lists
// expect-error: \[kvtl\] schedule: add `static constexpr std::string_view name` and what slots/schedule.hpp lists
// expect-error: \[kvtl\] retention: declare name and drops, as slots/retention.hpp says
// expect-error: \[kvtl\] io: the policy needs name, config, device
// expect-errors: 12
// SPDX-License-Identifier: MIT
#include <kvtl/presets/full.hpp>

struct empty {};
struct bad : kvtl::presets::full {
    using clusterer = empty;
    using index = empty;
    using selector = empty;
    using estimator = empty;
    using budget = empty;
    using retention = empty;
    using compressor = empty;
    using position = empty;
    using layout = empty;
    using replacement = empty;
    using schedule = empty;
    using io = empty;
};

template class kvtl::kv_manager<bad>;
