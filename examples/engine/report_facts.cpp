// SPDX-License-Identifier: MIT
#include "report_facts.hpp"

#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <string_view>

namespace engine {

namespace {

std::string now() {
    const std::time_t seconds = std::time(nullptr);
    std::tm parts{};
    char text[32];
    if (localtime_r(&seconds, &parts) == nullptr) return {};
    return {text, std::strftime(text, sizeof text, "%Y-%m-%d %H:%M", &parts)};
}

/// The name that the processor gives itself, else its architecture.
std::string processor() {
    std::ifstream in("/proc/cpuinfo");
    for (std::string line; std::getline(in, line);)
        if (line.starts_with("model name"))
            if (const auto colon = line.find(": "); colon != std::string::npos) return line.substr(colon + 2);
    utsname system{};
    return uname(&system) == 0 ? std::string(system.machine) : std::string("unknown processor");
}

std::string machine() {
    std::string text = processor();
    cpu_set_t usable;
    CPU_ZERO(&usable);
    if (sched_getaffinity(0, sizeof usable, &usable) == 0)
        text += ", " + std::to_string(CPU_COUNT(&usable)) + " of its processors";
    const long pages = sysconf(_SC_PHYS_PAGES), bytes = sysconf(_SC_PAGE_SIZE);
    if (pages > 0 && bytes > 0)
        text +=
            ", " +
            std::to_string((static_cast<unsigned long long>(pages) * static_cast<unsigned long long>(bytes) +
                            (1ULL << 29)) >>
                           30) +
            " GiB";
    return text;
}

std::string shell_word(std::string_view word) {
    constexpr std::string_view plain =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-+=.,:/@%";
    if (!word.empty() && word.find_first_not_of(plain) == std::string_view::npos) return std::string(word);
    std::string text = "'";
    for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return text + "'";
}

} // namespace

std::vector<std::pair<std::string, std::string>> report_facts(int argc, const char* const* argv) {
    std::string command;
    for (int i = 0; i < argc; ++i) {
        if (i > 0) command += ' ';
        command += shell_word(i == 0 ? std::filesystem::path(argv[0]).filename().string() : argv[i]);
    }
    return {{"date", now()}, {"machine", machine()}, {"command", command}};
}

} // namespace engine
