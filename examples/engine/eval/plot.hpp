// A scatter plot with lines as inline SVG. A series keeps its colour and shape everywhere: ten colours times
// seven shapes tell seventy apart. A logarithmic axis has one place in front of it for values of 0. Points
// that would all have the same x can stand side by side on a strip behind the axis.
//
// Units: user units of the SVG, which is 460 wide and scales with the page.
// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace eval {

enum class axis_kind : std::uint8_t {
    share,       ///< 0 to 1, linear
    logarithmic, ///< 1, 2, 5, 10, ...
    bytes,       ///< logarithmic in powers of two
};

struct axis {
    std::string label; ///< with its unit
    axis_kind kind = axis_kind::logarithmic;
    std::string strip{}; ///< what an infinite x means: points of a series each have their own place there
};

struct plot_point {
    double x = 0, y = 0;
    std::string tip;                               ///< shown when pointed at
    std::optional<std::array<double, 2>> likely{}; ///< interval of y, drawn as a bar
};

struct plot_series {
    std::size_t style = 0; ///< index of colour and shape
    std::vector<plot_point> points;
};

/// A number of bytes with its unit: "1.5 MiB".
[[nodiscard]] std::string with_unit(double bytes);

/// Text made safe for HTML.
[[nodiscard]] std::string escaped(std::string_view text);

/// The symbol of a style, around (x, y).
[[nodiscard]] std::string marker(std::size_t style, double x, double y);

/// `level`: a y that all are compared with, drawn as a dashed line.
[[nodiscard]] std::string plot(const axis& x, const axis& y, const std::vector<plot_series>& all,
                               std::optional<double> level);

} // namespace eval
