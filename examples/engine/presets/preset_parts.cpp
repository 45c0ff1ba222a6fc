// SPDX-License-Identifier: MIT
#include "presets/preset_parts.hpp"

#include <kvtl/calibration/calibration.hpp>
#include <kvtl/calibration/gate_weights.hpp>
#include <kvtl/io/backends.hpp>

#include "gates.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <set>

namespace engine {

kvtl::result<kvtl::any_io::config> device_of(const cache_options& o) {
    if (o.device.from) return o.device;
    const auto use = kvtl::parse_backend(o.io);
    if (!use)
        return kvtl::error(kvtl::errc::invalid_argument, "--io is " + o.io + "; valid: uring, posix, memory");
    return kvtl::any_backend({.use = *use, .path = o.path, .keep_file = o.keep_file, .limit = o.limit});
}

kvtl::any_io::config memory_device() {
    return kvtl::any_backend({.use = kvtl::backend::memory});
}

kvtl::result<std::string> find_trained(const cache_options& o, std::uint32_t kinds, float rate) {
    std::set<float> rates;
    std::error_code none;
    for (const auto& file : std::filesystem::directory_iterator(KVTL_DATA_DIR, none)) {
        if (o.fingerprint == 0 || file.path().extension() != ".cal") continue;
        const auto open = kvtl::calibration_file::open(file.path().string(), o.shape,
                                                       {.kinds = kinds, .fingerprint = o.fingerprint});
        if (!open) continue;
        for (const kvtl::calibration_section& s : open->sections()) {
            if ((kinds & kvtl::kind_bit(s.kind)) == 0) continue;
            if (std::fabs(s.rate - rate) <= 0.005F) return file.path().string();
            rates.insert(s.rate);
        }
    }
    std::string valid;
    for (const float r : rates) {
        char text[32];
        std::snprintf(text, sizeof text, "%s%g", valid.empty() ? "" : ", ", static_cast<double>(r));
        valid += text;
    }
    char text[200];
    if (valid.empty())
        std::snprintf(text, sizeof text,
                      "no trained bases ship for this model (bench/train_gates trains some)");
    else
        std::snprintf(text, sizeof text,
                      "no trained bases of compressor.rate %g ship for this model; valid: %.100s",
                      static_cast<double>(rate), valid.c_str());
    return kvtl::error(kvtl::errc::unsupported, "--gates: policy " + o.policy + " needs a file: " + text);
}

kvtl::result<std::string> find_gates(const cache_options& o) {
    std::error_code none;
    for (const auto& file : std::filesystem::directory_iterator(KVTL_DATA_DIR, none)) {
        if (o.fingerprint == 0 || !file.path().filename().string().ends_with("." + o.policy + ".gates"))
            continue;
        const auto bytes = read_gates(file.path().string());
        if (!bytes || bytes->size() < sizeof(kvtl::gate_header)) continue;
        kvtl::gate_header h;
        std::memcpy(&h, bytes->data(), sizeof h);
        if (h.model == o.fingerprint) return file.path().string();
    }
    return kvtl::error(kvtl::errc::unsupported,
                       "--gates: policy " + o.policy +
                           " needs a file with the weights of its gates: none ship for this model "
                           "(bench/train_gates trains them; kvtl-calibrate fits those of locret)");
}

} // namespace engine
