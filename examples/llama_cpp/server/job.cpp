// SPDX-License-Identifier: MIT
#include "job.hpp"

#include <utility>

namespace kvtl_server {

job::news job::wait(std::chrono::milliseconds most) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, most, [&] { return ended_ || !text_.empty(); });
    return {.text = std::exchange(text_, {}), .ended = ended_};
}

void job::say(std::string_view text) {
    if (text.empty()) return;
    const std::lock_guard lock(mutex_);
    text_ += text;
    changed_.notify_one();
}

void job::end(finish_reason reason, const token_usage& usage) {
    const std::lock_guard lock(mutex_);
    reason_ = reason;
    usage_ = usage;
    ended_ = true;
    changed_.notify_one();
}

void job::fail(const std::string& sentence) {
    const std::lock_guard lock(mutex_);
    failure_ = sentence;
    ended_ = true;
    changed_.notify_one();
}

} // namespace kvtl_server
