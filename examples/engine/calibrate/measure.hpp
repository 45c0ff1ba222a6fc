// How long this machine takes for what the tuner asks: reads of groups at once, attention and scores of one
// layer on one core. All results are medians in microseconds.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/geometry.hpp>
#include <kvtl/io/throttled.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace engine {

struct read_options {
    std::string io = "uring"; ///< uring, posix or memory
    std::string path;
    std::uint64_t file_bytes = 0;
    std::uint64_t batch_bytes = 0; ///< the most that one batch of reads brings in
    std::uint32_t most_reads = 1;  ///< of one batch
    kvtl::device_profile device;   ///< slows the real one down
};

/// A file of random bytes and reads from random places of it. The file is removed with this object.
class read_meter {
  public:
    /// Writes the file, with posix where the kernel refuses io_uring, which `program` says then. Throws bad_input when it
    /// cannot be made, run_failure when writing fails.
    read_meter(const read_options& options, const char* program);
    ~read_meter();
    read_meter(const read_meter&) = delete;
    read_meter& operator=(const read_meter&) = delete;

    /// `reads` reads of `bytes` bytes (rounded up to pages) handed to the device together, until the last has
    /// arrived. Throws run_failure.
    [[nodiscard]] double read_us(std::uint64_t bytes, std::uint32_t reads, int repeats = 7);
    [[nodiscard]] kvtl::io_device_info device_info() const;
    [[nodiscard]] const std::string& io() const noexcept; ///< what reads

  private:
    struct parts;
    std::unique_ptr<parts> parts_;
};

/// Attention of all query heads of a layer to `tokens` entries of f16.
[[nodiscard]] double attend_us(const kvtl::shape& shape, std::uint32_t tokens);

/// Low-rank scores of `context` tokens of f16 as `kvswap` computes them: the mean query brought into `rank` dimensions, one
/// product per token.
[[nodiscard]] double score_us(const kvtl::shape& shape, std::uint64_t context, std::uint32_t rank);

} // namespace engine
