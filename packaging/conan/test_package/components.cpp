// Calls each component that the package was made with; prints their names. SPDX-License-Identifier: MIT
#include <kvtl/io/default_file.hpp>
#ifdef KVTL_HAS_CALIBRATE
#include <kvtl/calibration/fit/calibration_fit.hpp>
#endif
#ifdef KVTL_HAS_TLS
#include <kvtl/store/tls_stream.hpp>
#endif

#include <cstdio>
#include <vector>

int main() {
    // A container may forbid io_uring: errc::unsupported is an answer, too.
    kvtl::io_plan plan;
    plan.max_bytes = 1 << 20;
    const auto file = kvtl::default_file::open({.path = "components.kv"}, plan);
    if (!file && file.error().code != kvtl::errc::unsupported)
        return std::puts(file.error().message.c_str()), 1;
    std::puts(kvtl::default_file::name.data());
#ifdef KVTL_HAS_CALIBRATE
    auto fit = kvtl::calibration_fit::make({.layers = 1, .query_heads = 2, .kv_heads = 1, .head_dim = 4});
    const std::vector<float> keys = {3, 0, 4, 0, -6, 0, -8, 0, 0, 1, 0, 0};
    if (!fit || !fit->add(0, {.k = keys}) || !fit->finish()) return 1;
    std::puts("calibrate");
#endif
#ifdef KVTL_HAS_TLS
    kvtl::tls_stream stream({.ca_file = "no_such_file.pem"});
    if (stream.is_open() || stream.connect({}, {})) return 1;
    std::puts("tls");
#endif
    return 0;
}
