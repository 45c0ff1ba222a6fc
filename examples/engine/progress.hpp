// A progress bar on standard error, drawn only when that is a terminal.
// SPDX-License-Identifier: MIT
#pragma once

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <string>
#include <utility>

namespace engine {

class progress_bar {
  public:
    /// `visible` false keeps it silent even on a terminal, e.g. while text streams to the same one.
    progress_bar(std::string label, std::size_t total, bool visible = true)
        : label_(std::move(label)), total_(std::max<std::size_t>(total, 1)),
          visible_(visible && ::isatty(STDERR_FILENO) == 1) {}
    ~progress_bar() { clear(); }
    progress_bar(const progress_bar&) = delete;
    progress_bar& operator=(const progress_bar&) = delete;

    void update(std::size_t done) {
        const auto now = std::chrono::steady_clock::now();
        if (!visible_ || (drawn_ && done < total_ && now - last_ < std::chrono::milliseconds(50))) return;
        last_ = now;
        drawn_ = true;
        constexpr std::size_t width = 40;
        const std::size_t filled = std::min(done, total_) * width / total_;
        const std::string bar = std::string(filled, '#') + std::string(width - filled, '.');
        std::fprintf(stderr, "\r%s [%s] %zu/%zu", label_.c_str(), bar.c_str(), done, total_);
        std::fflush(stderr);
    }

    /// Takes the bar away, so that other output can follow.
    void clear() {
        if (!drawn_) return;
        std::fputs("\r\033[K", stderr);
        std::fflush(stderr);
        drawn_ = false;
    }

  private:
    std::string label_;
    std::size_t total_;
    bool visible_;
    bool drawn_ = false;
    std::chrono::steady_clock::time_point last_;
};

} // namespace engine
