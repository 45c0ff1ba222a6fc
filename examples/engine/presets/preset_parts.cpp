// SPDX-License-Identifier: MIT
#include "presets/preset_parts.hpp"

#include <kvtl/io/backends.hpp>

namespace engine {

kvtl::result<kvtl::any_io::config> device_of(const cache_options& o) {
    const auto use = kvtl::parse_backend(o.io);
    if (!use)
        return kvtl::error(kvtl::errc::invalid_argument, "--io is " + o.io + "; valid: uring, posix, memory");
    return kvtl::any_backend({.use = *use, .path = o.path, .limit = o.limit});
}

kvtl::any_io::config memory_device() {
    return kvtl::any_backend({.use = kvtl::backend::memory});
}

cache_stats stats_of(const kvtl::statistics& s, const kvtl::io_facts& facts) {
    cache_stats out;
    out.resident_bytes_peak = s.resident_bytes_peak;
    out.read_bytes = s.read_bytes;
    out.useful_bytes = s.useful_bytes;
    out.reads = s.reads;
    out.written_bytes = s.written_bytes;
    out.hit_rate = s.hit_rate();
    out.mean_read_entries = s.mean_read_entries();
    out.storage_bytes = s.storage_bytes;
    const kvtl::memory_parts& p = s.bytes_by_part;
    out.bytes_by_part = {{"index", p.index},     {"metadata", p.metadata}, {"window", p.window},
                         {"buffers", p.buffers}, {"tails", p.tails},       {"scratch", p.scratch},
                         {"frames", p.frames}};
    out.io = facts.name == std::string_view("in_memory")    ? "memory"
             : facts.name == std::string_view("posix_file") ? "posix"
                                                            : "uring";
    out.direct = facts.direct;
    out.detail = s;
    return out;
}

} // namespace engine
