// What the programs of the engine share: options that mean the same everywhere, a cache that opens on what
// the system allows, and the two exit statuses.
// SPDX-License-Identifier: MIT
#pragma once

#include "kv_cache.hpp"
#include "memory_report.hpp"

#include <array>
#include <cstddef>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace engine {

/// Throws bad_input with this message unless `good`.
void require(bool good, const std::string& message);

/// For CLI11, which would take -1 for the largest unsigned number: empty, or what is wrong with the text.
[[nodiscard]] std::string whole_number(const std::string& text);

/// What stands between the commas of a list.
[[nodiscard]] std::vector<std::string> parts_of(const std::string& list);

/// Numbers of 1 or more between commas, each once. Throws bad_input.
[[nodiscard]] std::vector<std::size_t> whole_numbers(const std::string& list, const char* option);

/// --share-layers of a model with so many layers: the owner of each layer (kvtl::cache_config::owner). `list` names the owners,
/// or is a number N: of each N neighbouring layers all attend the first. Empty if `list` is, or if no layer shares. Throws
/// bad_input.
[[nodiscard]] std::vector<std::uint32_t> owners_of(const std::string& list, std::uint32_t layers);
inline constexpr const char* share_layers_help =
    "layers that share a cache. N: in each group of N neighbouring layers, all attend the keys and values of "
    "the first. 0,0,2,..: for each layer, the layer whose keys and values it attends. For models that were "
    "trained so";

/// POLICY.SLOT.FIELD=VALUE of a policy that is built in. Throws bad_input.
[[nodiscard]] setting parse_setting(const std::string& text);

/// That each setting is of one of these, which run. Throws bad_input.
void require_running(const std::vector<setting>& settings, const std::vector<std::string>& policies);

inline constexpr std::array<std::string_view, 3> io_names = {"uring", "posix", "memory"};
[[nodiscard]] std::vector<std::string_view> device_names(); ///< profiles that --device takes

/// Throws bad_input that lists the valid names, first the one that was probably meant.
void require_policy(const std::string& name, const char* option);
void require_io(const std::string& name);
void require_device(const std::string& name);

/// MODEL.cal beside MODEL.gguf, or "" when there is none.
[[nodiscard]] std::string calibration_beside(const std::string& model_file);

/// A run may take long: finds out before it whether its result can be written. "" and "-" always can.
void require_writable(const std::string& file, const char* option);
/// The same of a file that is replaced as a whole: what is there must be a regular file, or a link to one.
void require_replaceable(const std::string& file, const char* option);

/// Text and a line end into a file, or for "-" to standard output. Throws run_failure.
void write_output(const std::string& file, const std::string& text);

/// For --list-policies, on standard output: names alone, or grouped_list() on a terminal.
void print_policies();

/// open(): a kvtl::result of what `io` names. Where that is io_uring and something is not supported, it is called once more with
/// io = "posix", as which `io` stays, and if that works a warning says why. Every other failure, and that of posix, is returned.
template <class Open> [[nodiscard]] auto or_posix(std::string& io, const char* program, const Open& open) {
    auto opened = open();
    if (opened.ok() || opened.error().code != kvtl::errc::unsupported || io != "uring") return opened;
    const std::string reason = opened.error().message;
    io = "posix";
    opened = open();
    if (opened.ok())
        std::fprintf(stderr, "%s: warning: io_uring cannot be used (%s); using posix\n", program,
                     reason.c_str());
    return opened;
}

/// Opens the cache, with or_posix(), so that options.io says what reads, and sees to it that its file never stays behind. Throws bad_input. Call forget_file()
/// once the cache is closed.
[[nodiscard]] std::unique_ptr<kv_cache> open_or_fall_back(cache_options& options, const char* program);

/// For --least-memory: a line per row on standard output; with a file also, or for "-" only, to_json() of them. Throws
/// bad_input when no row has a least memory, run_failure when the file cannot be written.
void print_least(const std::vector<least_row>& rows, const std::string& json_file);

/// One line on standard error; returns the status.
int fail(const char* program, int exit_status, std::string_view message);

/// What main() does: runs the body and turns bad_input into exit status 2 and any other exception into 1.
int run_program(const char* program, const std::function<int()>& body);

} // namespace engine
