// SPDX-License-Identifier: MIT
#include "plot.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

namespace eval {

namespace {

constexpr double width = 460, height = 340;
constexpr double left = 66, right = width - 16, top = 14, bottom = height - 54;

// Legible on white and on near-black.
constexpr std::array colours = {"#3b82c4", "#e07b39", "#3f9b57", "#d0504e", "#8a6bbf",
                                "#9c755f", "#d16ba5", "#7d8790", "#a39b2a", "#2aa5b5"};
constexpr std::size_t shapes = 7; // shares no factor with the colours: all combinations occur

template <class... Values> std::string format(const char* pattern, Values... values) {
    char text[256];
    std::snprintf(text, sizeof text, pattern, values...);
    return text;
}

/// A run of values onto a run of pixels.
class scale {
  public:
    scale(axis_kind kind, std::vector<double> values, double from, double to)
        : kind_(kind), from_(from), to_(to) {
        if (kind == axis_kind::share) {
            low_ = 0, high_ = 1;
            return;
        }
        zero_ = std::any_of(values.begin(), values.end(), [](double v) { return !(v > smallest); });
        std::erase_if(values, [](double v) { return !(v > smallest); });
        low_ = values.empty() ? 1 : *std::min_element(values.begin(), values.end());
        high_ = values.empty() ? 1 : *std::max_element(values.begin(), values.end());
        // The axis spans at least a factor of four, so that it has ticks even for a single value.
        const double margin = std::max(1.15, std::sqrt(4 / std::min(4.0, high_ / low_)));
        low_ = std::log2(low_ / margin);
        high_ = std::log2(high_ * margin);
    }

    [[nodiscard]] double at(double value) const {
        if (kind_ == axis_kind::share) return from_ + (to_ - from_) * value;
        if (!(value > smallest)) return from_ + (to_ - from_) * zero_place;
        const double begin = zero_ ? zero_room : 0;
        return from_ + (to_ - from_) * (begin + (1 - begin) * (std::log2(value) - low_) / (high_ - low_));
    }

    [[nodiscard]] std::vector<std::pair<double, std::string>> ticks() const {
        std::vector<std::pair<double, std::string>> all;
        if (kind_ == axis_kind::share) {
            for (int i = 0; i <= 5; ++i) all.emplace_back(0.2 * i, format("%.1f", 0.2 * i));
            return all;
        }
        if (zero_) all.emplace_back(0, "0");
        if (kind_ == axis_kind::bytes) {
            const double most = std::max(1.0, std::floor(std::abs(to_ - from_) / 72)); // labels side by side
            const int step = std::max(1, static_cast<int>(std::ceil((high_ - low_) / most)));
            for (int e = static_cast<int>(std::ceil(low_)); e <= static_cast<int>(std::floor(high_));
                 e += step)
                all.emplace_back(std::exp2(e), with_unit(std::exp2(e)));
            return all;
        }
        const bool fine = high_ - low_ < 2.5 * std::log2(10);
        for (int e = -12; e <= 12; ++e)
            for (const int digit : {1, 2, 5}) {
                const double value = digit * std::pow(10, e);
                const bool inside = std::log2(value) >= low_ && std::log2(value) <= high_;
                if (inside && (fine || digit == 1)) all.emplace_back(value, format("%g", value));
            }
        return all;
    }

    /// Where the place for 0 ends; nothing when there is none.
    [[nodiscard]] std::optional<double> seam() const {
        if (!zero_) return {};
        return from_ + (to_ - from_) * (zero_place + zero_room) / 2;
    }

  private:
    static constexpr double smallest = 1e-9; // rounding errors of what should be 0
    static constexpr double zero_place = 0.04, zero_room = 0.1;

    axis_kind kind_;
    double from_, to_;
    double low_ = 0, high_ = 1; // logarithms unless it is a share
    bool zero_ = false;
};

} // namespace

std::string with_unit(double bytes) {
    const char* unit = "B";
    for (const char* next : {"KiB", "MiB", "GiB", "TiB"}) {
        if (bytes < 1024) break;
        bytes /= 1024;
        unit = next;
    }
    return format(bytes < 10 && bytes != std::floor(bytes) ? "%.1f %s" : "%.0f %s", bytes, unit);
}

std::string escaped(std::string_view text) {
    std::string out;
    for (const char c : text) switch (c) {
        case '&':
            out += "&amp;";
            break;
        case '<':
            out += "&lt;";
            break;
        case '>':
            out += "&gt;";
            break;
        case '"':
            out += "&quot;";
            break;
        default:
            out += c;
        }
    return out;
}

std::string marker(std::size_t style, double x, double y) {
    const char* colour = colours[style % colours.size()];
    const auto polygon = [&](std::initializer_list<std::pair<double, double>> corners) {
        std::string points;
        for (const auto& [dx, dy] : corners) points += format("%.1f,%.1f ", x + dx, y + dy);
        return "<polygon class=\"m\" points=\"" + points + "\" fill=\"" + colour + "\"/>";
    };
    switch (style % shapes) {
    case 0:
        return format("<circle class=\"m\" cx=\"%.1f\" cy=\"%.1f\" r=\"4.5\" fill=\"%s\"/>", x, y, colour);
    case 1:
        return polygon({{-4, -4}, {4, -4}, {4, 4}, {-4, 4}});
    case 2:
        return polygon({{0, -5.5}, {5, 4}, {-5, 4}});
    case 3:
        return polygon({{0, -6}, {5, 0}, {0, 6}, {-5, 0}});
    case 4:
        return polygon({{-5, -4}, {5, -4}, {0, 5.5}});
    case 5:
        return polygon({{-2, -5.5},
                        {2, -5.5},
                        {2, -2},
                        {5.5, -2},
                        {5.5, 2},
                        {2, 2},
                        {2, 5.5},
                        {-2, 5.5},
                        {-2, 2},
                        {-5.5, 2},
                        {-5.5, -2},
                        {-2, -2}});
    default:
        return polygon({{-5, -6}, {-1, 0}, {-5, 6}, {5, 6}, {1, 0}, {5, -6}});
    }
}

std::string plot(const axis& x, const axis& y, const std::vector<plot_series>& all,
                 std::optional<double> level) {
    std::vector<double> xs, ys;
    std::vector<std::size_t> slot(all.size()); // of a series on the strip, from 1
    std::size_t slots = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
        bool on_strip = false;
        for (const auto& p : all[i].points) {
            ys.push_back(p.y);
            if (p.likely) ys.insert(ys.end(), p.likely->begin(), p.likely->end());
            if (std::isinf(p.x))
                on_strip = true;
            else
                xs.push_back(p.x);
        }
        if (on_strip) slot[i] = ++slots;
    }
    if (level) ys.push_back(*level);
    const double strip = slots == 0 ? right : xs.empty() ? left : (left + right) / 2; // where it begins
    const scale across(x.kind, xs, left, xs.empty() ? right : strip), up(y.kind, ys, bottom, top);
    const auto column = [&](std::size_t series, const plot_point& p) {
        if (!std::isinf(p.x)) return across.at(p.x);
        return strip + (right - strip) * static_cast<double>(slot[series]) / static_cast<double>(slots + 1);
    };

    std::string svg = format("<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\" aria-label=\"", width, height) +
                      escaped(y.label) + " against " + escaped(x.label) + "\">";
    const auto line = [&](const char* kind, double x1, double y1, double x2, double y2) {
        svg += format("<line class=\"%s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>", kind, x1, y1,
                      x2, y2);
    };
    const auto below = [&](double at, const std::string& text) {
        svg += format("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">", at, bottom + 17) +
               escaped(text) + "</text>";
    };
    for (const auto& [value, text] : xs.empty() && slots != 0 ? decltype(across.ticks()){} : across.ticks()) {
        line("grid", across.at(value), top, across.at(value), bottom);
        below(across.at(value), text);
    }
    if (slots != 0) below((strip + right) / 2, x.strip);
    if (slots != 0 && !xs.empty()) line("seam", strip, top, strip, bottom);
    for (const auto& [value, text] : up.ticks()) {
        line("grid", left, up.at(value), right, up.at(value));
        svg += format("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">", left - 7, up.at(value) + 4.5) +
               text + "</text>";
    }
    line("axis", left, top, left, bottom);
    line("axis", left, bottom, right, bottom);
    if (const auto seam = across.seam()) line("seam", *seam, top, *seam, bottom);
    if (const auto seam = up.seam()) line("seam", left, *seam, right, *seam);
    svg += format("<text class=\"label\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">", (left + right) / 2,
                  height - 12) +
           escaped(x.label) + "</text>";
    svg +=
        format("<text class=\"label\" transform=\"translate(16 %.1f) rotate(-90)\" text-anchor=\"middle\">",
               (top + bottom) / 2) +
        escaped(y.label) + "</text>";
    if (level) line("level", left, up.at(*level), right, up.at(*level));

    for (std::size_t i = 0; i < all.size(); ++i) {
        std::string path;
        for (const auto& p : all[i].points) path += format("%.1f,%.1f ", column(i, p), up.at(p.y));
        if (all[i].points.size() > 1)
            svg += "<polyline points=\"" + path + "\" stroke=\"" + colours[all[i].style % colours.size()] +
                   "\"/>";
    }
    for (std::size_t i = 0; i < all.size(); ++i)
        for (const auto& p : all[i].points)
            if (p.likely)
                svg += format(
                    "<line class=\"likely\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\"/>",
                    column(i, p), up.at((*p.likely)[0]), column(i, p), up.at((*p.likely)[1]),
                    colours[all[i].style % colours.size()]);
    for (std::size_t i = 0; i < all.size(); ++i)
        for (const auto& p : all[i].points)
            svg += "<g>" + marker(all[i].style, column(i, p), up.at(p.y)) + "<title>" + escaped(p.tip) +
                   "</title></g>";
    return svg + "</svg>";
}

} // namespace eval
