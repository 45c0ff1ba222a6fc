// Random reads of a file through one of kvtl's backends: bandwidth, IOPS and processor time per read.
//
// What an fio job does with rw=randread, direct=1, bs=BLOCK, iodepth=DEPTH and one job: the file is written
// once, then reads of whole blocks at random places are kept in flight, `depth` at any time.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/io/backends.hpp>

#include "scratch_files.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace bench {

struct read_speed {
    double mb_per_s = 0;
    double iops = 0;
    double cpu_us_per_io = 0; ///< of the whole process: user and system time, helper threads included
};

class random_reader {
  public:
    struct config {
        std::string path;
        std::string io = "uring"; ///< falls back to posix where the kernel refuses io_uring
        std::uint64_t size = std::uint64_t{64} << 20;
        unsigned max_depth = 64; ///< of each queue
        unsigned queues = 1;
        std::uint32_t max_block = 1U << 17;
        bool keep_file = false;
        bool written = false;   ///< the file is there, as keep_file left it: it is not written again
        std::uint64_t seed = 0; ///< of the places that are read
        std::shared_ptr<kvtl::throttle> limit{};
    };

    /// Writes the file, whose blocks would otherwise be holes that no device is asked for. `progress` hears
    /// bytes. Throws engine::bad_input (a `written` file that is too short, too), or run_failure when writing
    /// fails.
    explicit random_reader(const config& c, const std::function<void(std::uint64_t)>& progress = nullptr);

    /// One queue; another thread may run another one. Throws engine::run_failure when a read fails.
    [[nodiscard]] read_speed run(std::uint32_t block, unsigned depth, std::uint64_t reads,
                                 const std::function<void(std::uint64_t)>& progress = nullptr,
                                 unsigned queue = 0);
    /// So many reads of every queue, each on a thread of its own, and what they do together. Throws as run().
    [[nodiscard]] read_speed run_together(std::uint32_t block, unsigned depth, std::uint64_t reads);

    [[nodiscard]] const std::string& io() const noexcept { return io_; } ///< what really runs
    [[nodiscard]] kvtl::io_device_info device_info() const noexcept { return device_->device_info(); }

  private:
    struct free_memory {
        void operator()(std::byte* p) const noexcept { std::free(p); }
    };

    std::uint64_t size_;
    unsigned max_depth_, queues_;
    std::uint32_t max_block_;
    std::string io_;
    std::optional<scratch_file> file_;               ///< none in memory
    std::unique_ptr<std::byte, free_memory> memory_; ///< (queues, max_depth, max_block)
    std::optional<kvtl::any_io::device> device_;
    std::vector<std::uint64_t> random_; ///< of each queue
};

/// The fixed probe that rows carry: 2,000 reads of 4 KiB for IOPS, 400 of 128 KiB for bandwidth, 32 at a
/// time.
struct device_probe {
    double iops_4k = 0;
    double mb_per_s_128k = 0;
};
[[nodiscard]] device_probe probe(random_reader& reader);
/// The same reads of all queues at once: what threads can share.
[[nodiscard]] device_probe probe_together(random_reader& reader);
/// What a row carries of the device: what one thread reads, and as many as the row has; nothing without a device.
struct device_probes {
    std::optional<device_probe> one, threads;
};

} // namespace bench
