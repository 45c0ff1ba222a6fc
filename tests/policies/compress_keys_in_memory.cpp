// keys_in_memory: another codec to the bit, which says where its keys live; and the granule's promises.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/compress_byte_row.hpp>
#include <kvtl/policies/compress_keys_in_memory.hpp>
#include <kvtl/policies/compress_raw.hpp>

#include "contracts/compressor.hpp"
#include "support/channel_codes.hpp"

namespace compress_keys_in_memory_test {

using namespace kvtl;

TEST_CASE_TEMPLATE("keys_in_memory keeps a compressor's promises", P, raw<f16>, int8_row<>) {
    static_assert(!codec_keeps_keys<P> && codec_keeps_keys<keys_in_memory<P>>);
    static_assert(keys_in_memory<P>::name == P::name);
    kvtl_test::compressor_contract<keys_in_memory<P>>();
}

TEST_CASE_TEMPLATE("records that several entries share keep them too", P, kvtl_test::channel_codes<2>,
                   kvtl_test::channel_codes<8>, kvtl_test::channel_codes<32>) {
    kvtl_test::compressor_contract<P>();
}

} // namespace compress_keys_in_memory_test
