// SPDX-License-Identifier: MIT
#include "program.hpp"

#include <kvtl/core/layer_map.hpp>
#include <kvtl/io/throttled.hpp>

#include "cleanup.hpp"
#include "error.hpp"
#include "policy_list.hpp"
#include "suggestion.hpp"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

namespace engine {

void require(bool good, const std::string& message) {
    if (!good) throw bad_input(message);
}

std::string whole_number(const std::string& text) {
    if (text.empty() || text.find_first_not_of("0123456789") != std::string::npos)
        return "'" + text + "' is not a whole number";
    return text.size() > 19 ? "'" + text + "' is too large" : ""; // 20 digits may be more than 64 bits
}

std::vector<std::string> parts_of(const std::string& list) {
    std::vector<std::string> parts;
    std::istringstream text(list + ',');
    for (std::string part; std::getline(text, part, ',');) parts.push_back(part);
    return parts;
}

std::vector<std::size_t> whole_numbers(const std::string& list, const char* option) {
    std::vector<std::size_t> all;
    for (const std::string& part : parts_of(list)) {
        const bool good = part.size() <= 9 && whole_number(part).empty() && std::stoul(part) > 0;
        require(good, std::string(option) + ": '" + part + "'; valid: 1 or more, separated by commas");
        const std::size_t n = std::stoul(part);
        if (std::find(all.begin(), all.end(), n) == all.end()) all.push_back(n);
    }
    return all;
}

std::vector<std::uint32_t> owners_of(const std::string& list, std::uint32_t layers) {
    std::vector<std::uint32_t> owner;
    if (list.empty()) return owner;
    for (const std::string& part : parts_of(list)) {
        require(part.size() <= 9 && !part.empty() && whole_number(part).empty(),
                "--share-layers: '" + part +
                    "'; valid: a number of layers, or a layer for each, separated by commas");
        owner.push_back(static_cast<std::uint32_t>(std::stoul(part)));
    }
    if (owner.size() == 1 && (layers > 1 || owner[0] > 0)) { // 0 is the list of one layer
        const std::uint32_t n = owner[0];
        require(n > 0 && n <= layers, "--share-layers: " + std::to_string(n) + "; valid: 1 to " +
                                          std::to_string(layers) + " layers, or a list");
        owner.clear();
        for (std::uint32_t l = 0; l < layers; ++l) owner.push_back(l - l % n);
    }
    const auto map = kvtl::layer_map::make(owner, layers);
    require(map.ok(), "--share-layers: " + (map.ok() ? "" : map.error().message));
    if (!map->shares()) owner.clear();
    return owner;
}

setting parse_setting(const std::string& text) {
    const auto equals = text.find('=');
    const auto first = text.find('.');
    const auto second = first == std::string::npos ? first : text.find('.', first + 1);
    setting s;
    if (equals != std::string::npos && second < equals)
        s = {text.substr(0, first), text.substr(first + 1, second - first - 1),
             text.substr(second + 1, equals - second - 1), text.substr(equals + 1)};
    require(!s.policy.empty() && !s.slot.empty() && !s.field.empty() && !s.value.empty(),
            "--set " + text + ": expected POLICY.SLOT.FIELD=VALUE");
    require_policy(s.policy, "--set");
    return s;
}

void require_running(const std::vector<setting>& settings, const std::vector<std::string>& policies) {
    for (const setting& s : settings)
        require(std::find(policies.begin(), policies.end(), s.policy) != policies.end(),
                "--set " + s.policy + "." + s.slot + "." + s.field + "=" + s.value +
                    ": this policy does not run; " + valid_names(s.policy, policies));
}

// There are over a hundred names: the message has ten of them, and so three lines of a terminal at most.
void require_policy(const std::string& name, const char* option) {
    const auto names = policy_names();
    if (std::find(names.begin(), names.end(), name) != names.end()) return;
    throw bad_input(std::string(option) + ": unknown policy '" + name + "'; " + valid_names(name, names, 10) +
                    "; kvtl-run --list-policies prints all");
}

void require_io(const std::string& name) {
    require(std::find(io_names.begin(), io_names.end(), name) != io_names.end(),
            "--io: unknown device '" + name + "'; " + valid_names(name, io_names));
}

std::vector<std::string_view> device_names() {
    std::vector<std::string_view> names;
    names.reserve(kvtl::device_profiles.size());
    for (const kvtl::device_profile& d : kvtl::device_profiles) names.push_back(d.name);
    return names;
}

void require_device(const std::string& name) {
    require(kvtl::find_device(name) != nullptr,
            "--device: unknown device '" + name + "'; " + valid_names(name, device_names()));
}

std::string calibration_beside(const std::string& model_file) {
    const std::filesystem::path file = std::filesystem::path(model_file).replace_extension(".cal");
    std::error_code none;
    return std::filesystem::is_regular_file(file, none) ? file.string() : std::string();
}

void require_writable(const std::string& file, const char* option) {
    namespace fs = std::filesystem;
    if (file.empty() || file == "-") return;
    const fs::path path(file);
    const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
    std::error_code ignored;
    const bool exists = fs::exists(path, ignored);
    const bool writable = ::access((exists ? path : folder).c_str(), W_OK) == 0;
    require(writable && !fs::is_directory(path, ignored), std::string(option) + ": cannot write " + file);
}

void require_replaceable(const std::string& file, const char* option) {
    require_writable(file, option);
    std::error_code ignored;
    require(file.empty() || file == "-" || !std::filesystem::exists(file, ignored) ||
                std::filesystem::is_regular_file(file, ignored),
            std::string(option) + ": " + file + " is there and no regular file, which could be replaced");
}

void write_output(const std::string& file, const std::string& text) {
    if (file == "-") {
        std::printf("%s\n", text.c_str());
        return;
    }
    std::ofstream out(file, std::ios::binary | std::ios::trunc);
    out << text << '\n';
    out.close();
    if (!out) throw run_failure("cannot write " + file);
}

void print_policies() {
    if (::isatty(STDOUT_FILENO) == 1)
        std::fputs(grouped_list(listed_policies()).c_str(), stdout);
    else
        for (const auto name : policy_names())
            std::printf("%.*s\n", static_cast<int>(name.size()), name.data());
}

std::unique_ptr<kv_cache> open_or_fall_back(cache_options& options, const char* program) {
    const signal_hold hold;
    auto opened = or_posix(options.io, program, [&] { return open_cache(options); });
    if (!opened) throw bad_input(opened.error().message);
    if (options.io != "memory") remove_on_signal(options.path);
    return std::move(*opened);
}

void print_least(const std::vector<least_row>& rows, const std::string& json_file) {
    const auto opens = [](const least_row& r) { return r.need.ok(); };
    if (std::none_of(rows.begin(), rows.end(), opens))
        throw bad_input(rows.empty() ? "no policy" : rows.front().need.error().message);
    if (json_file != "-")
        for (const least_row& r : rows) std::printf("%s\n", least_line(r).c_str());
    if (!json_file.empty()) write_output(json_file, to_json(rows));
}

int fail(const char* program, int exit_status, std::string_view message) {
    std::fprintf(stderr, "%s: %.*s\n", program, static_cast<int>(message.size()), message.data());
    return exit_status;
}

int run_program(const char* program, const std::function<int()>& body) {
    // A file-size limit shall come back as an error of the write, not end the program.
    std::signal(SIGXFSZ, SIG_IGN);
    end_when_mapping_is_lost();
    try {
        const int status = body();
        // What was printed may still be on its way to a disk that is full.
        if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
            return fail(program, std::max(status, 1), "cannot write to standard output");
        return status;
    } catch (const bad_input& e) {
        return fail(program, 2, e.what());
    } catch (const std::exception& e) {
        return fail(program, 1, e.what());
    }
}

} // namespace engine
