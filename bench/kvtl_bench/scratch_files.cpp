// SPDX-License-Identifier: MIT
#include "scratch_files.hpp"

#include "error.hpp"
#include "program.hpp"

#include <sys/statvfs.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

namespace bench {

namespace {

constexpr int ending_signals[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE};

// What the handler may touch: memory that exists for the whole run, and flags it can read at any moment.
struct slot {
    char path[PATH_MAX];
    std::atomic<bool> used = false;
};
std::array<slot, 512> slots;
static_assert(std::atomic<bool>::is_always_lock_free);

extern "C" void remove_all_and_end(int number) {
    for (const slot& s : slots)
        if (s.used.load()) ::unlink(s.path);
    ::raise(number); // SA_RESETHAND has restored the default action
}

void install() {
    struct sigaction action = {};
    action.sa_handler = remove_all_and_end;
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    ::sigemptyset(&action.sa_mask);
    for (const int number : ending_signals) {
        struct sigaction current = {};
        ::sigaction(number, nullptr, &current);
        if (current.sa_handler != SIG_IGN) ::sigaction(number, &action, nullptr); // nohup stays nohup
    }
}

} // namespace

scratch_file::scratch_file(std::string path, owner who) : path_(std::move(path)), who_(who), slot_(-1) {
    engine::require(path_.size() < PATH_MAX, "a path of " + std::to_string(path_.size()) +
                                                 " bytes is too long: " + path_.substr(0, 64) + "...");
    std::error_code ignored; // a file that is there already is not ours to remove; opening it decides
    if (std::filesystem::exists(path_, ignored)) {
        engine::require(who == owner::device, path_ + " is there already");
        return;
    }
    for (std::size_t i = 0; i < slots.size() && slot_ < 0; ++i)
        if (!slots[i].used.load()) slot_ = static_cast<int>(i);
    engine::require(slot_ >= 0, path_ + ": " + std::to_string(slots.size()) +
                                    " files are open already, more than a signal could remove");
    slot& s = slots[static_cast<std::size_t>(slot_)];
    std::memcpy(s.path, path_.c_str(), path_.size() + 1);
    s.used = true;
    install();
}

scratch_file::~scratch_file() {
    if (who_ == owner::ours) ::unlink(path_.c_str());
    if (slot_ >= 0) slots[static_cast<std::size_t>(slot_)].used = false;
}

double free_disk_bytes(const std::string& path, const char* option) {
    const std::filesystem::path folder = std::filesystem::path(path).parent_path();
    const std::string name = folder.empty() ? "." : folder.string();
    struct statvfs info = {};
    if (::statvfs(name.c_str(), &info) != 0)
        throw engine::bad_input(std::string(option) + ": " + name + ": " + std::strerror(errno));
    return static_cast<double>(info.f_bavail) * static_cast<double>(info.f_frsize);
}

double available_memory_bytes() {
    std::ifstream in("/proc/meminfo");
    std::string key, unit;
    double kib = 0;
    while (in >> key >> kib && std::getline(in, unit))
        if (key == "MemAvailable:") return kib * 1024;
    throw engine::bad_input("/proc/meminfo has no MemAvailable");
}

} // namespace bench
