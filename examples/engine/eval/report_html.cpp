// SPDX-License-Identifier: MIT
#include "report_html.hpp"

#include "plot.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <functional>
#include <iterator>
#include <limits>
#include <span>
#include <tuple>

namespace eval {

namespace {

constexpr const char* style = R"css(
:root{--bg:#fff;--fg:#1c2126;--dim:#5d6771;--line:#d7dce1;--card:#f6f8fa;color-scheme:light dark}
@media(prefers-color-scheme:dark){:root{--bg:#14181c;--fg:#e4e8ec;--dim:#98a3ad;--line:#343c44;--card:#1c2228}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1rem;max-width:1120px;background:var(--bg);color:var(--fg);
font:16px/1.5 system-ui,sans-serif;overflow-wrap:anywhere}
h1{font-size:1.5rem;line-height:1.25;margin:.5rem 0}h2{font-size:1.2rem;margin:2.2rem 0 .5rem}
h3{font-size:1rem;margin:1.2rem 0 .3rem}p,.facts{color:var(--dim);margin:.3rem 0}
.facts{display:flex;flex-wrap:wrap;gap:.1rem 1.2rem;padding:0;list-style:none}.facts b{color:var(--fg)}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,400px),1fr));gap:1rem}
figure{margin:0;padding:.6rem;background:var(--card);border:1px solid var(--line);border-radius:8px}
figcaption{font-weight:600;font-size:.95rem}svg{display:block;width:100%;height:auto}
svg text{fill:var(--fg);font-size:12.5px}svg .label{fill:var(--dim);font-size:13.5px}
.grid{stroke:var(--line)}.axis{stroke:var(--dim)}.seam{stroke:var(--dim);stroke-dasharray:2 3}
.level{stroke:var(--fg);stroke-width:1.4;stroke-dasharray:6 4}
polyline{fill:none;stroke-width:1.6;opacity:.75}.m{stroke:var(--card);stroke-width:1}
.legend{display:flex;flex-wrap:wrap;gap:.15rem 1rem;margin:.6rem 0;padding:0;list-style:none;font-size:.9rem}
.legend li{display:flex;align-items:center;gap:.35rem}.legend svg{width:16px;height:16px}
.legend i{width:13px;height:13px;border-radius:3px}
.scroll{overflow-x:auto;border:1px solid var(--line);border-radius:8px;margin:.6rem 0}
table{border-collapse:collapse;font-size:.88rem;font-variant-numeric:tabular-nums;min-width:100%;
overflow-wrap:normal}
th,td{padding:.35rem .65rem;text-align:right;white-space:nowrap;border-bottom:1px solid var(--line)}
th{background:var(--card);font-weight:600}tr:last-child td{border-bottom:0}
th:first-child,td:first-child{text-align:left;position:sticky;left:0;background:var(--card)}
td.why{white-space:normal;text-align:left;color:var(--dim);min-width:18rem}
details{margin:.6rem 0}summary{cursor:pointer;font-weight:600}
.bars{display:grid;grid-template-columns:minmax(6rem,max-content) 1fr 4.6rem;gap:.25rem .7rem;align-items:center;
font-size:.88rem;margin:.5rem 0}
.bars div{display:flex;height:15px;border-radius:3px;overflow:hidden}.bars em{font-style:normal;text-align:right;
font-variant-numeric:tabular-nums}
@media(max-width:560px){svg text{font-size:15px}svg .label{font-size:16px}.bars{grid-template-columns:1fr 4.6rem}.bars span{grid-column:1/-1;margin-top:.3rem}}
)css";

constexpr std::array phase_colours = {"#8a6bbf", "#3b82c4", "#2aa5b5", "#e07b39",
                                      "#3f9b57", "#a39b2a", "#d0504e"};

constexpr std::array retained_colours = {"#3b82c4", "#e07b39"};

std::string number(const std::optional<double>& value, const char* pattern, double unit = 1) {
    if (!value) return "–";
    char text[32];
    std::snprintf(text, sizeof text, pattern, *value / unit);
    return text;
}

std::string bytes(const std::optional<double>& value) {
    return value ? with_unit(*value) : "–";
}

/// A policy that evicts attends all that it keeps: there one number says both.
std::string budget_of(const row& r) {
    const std::string attended = std::to_string(r.attend_tokens) + " attended";
    if (!r.keep_tokens) return attended;
    const std::string kept = std::to_string(*r.keep_tokens) + " kept";
    return *r.keep_tokens == r.attend_tokens ? kept : kept + ", " + attended;
}

/// Rows of one task under one condition stand together.
std::string heading_of(const row& r) {
    return r.question.empty() ? r.task : r.task + ": question " + r.question + " while compressing";
}

/// The figure by which a task is judged.
struct quality {
    std::string name;
    axis_kind kind;
    const char* pattern;
    std::function<std::optional<double>(const row&)> of;
};

quality quality_of(const std::vector<const row*>& rows) {
    const auto any = [&](auto member) {
        return std::any_of(rows.begin(), rows.end(), [&](const row* r) { return (r->*member).has_value(); });
    };
    if (any(&row::accuracy))
        return {"accuracy", axis_kind::share, "%.2f", [](const row& r) { return r.accuracy; }};
    if (any(&row::kl))
        return {"KL(full ‖ policy), nats", axis_kind::logarithmic, "%.4f", [](const row& r) { return r.kl; }};
    return {"negative log-likelihood, nats", axis_kind::logarithmic, "%.4f",
            [](const row& r) { return r.nll; }};
}

/// First appearance decides the order.
template <class Key> auto distinct(const std::vector<const row*>& rows, const Key& key) {
    std::vector<decltype(key(*rows.front()))> all;
    for (const row* r : rows)
        if (std::find(all.begin(), all.end(), key(*r)) == all.end()) all.push_back(key(*r));
    return all;
}

std::vector<std::string> policies_of(const std::vector<const row*>& rows) {
    return distinct(rows, [](const row& r) { return r.policy; });
}

std::vector<std::string> lines_of(const std::vector<const row*>& rows) {
    return distinct(rows, line_of);
}

std::vector<std::string> budgets_of(const std::vector<const row*>& rows) {
    return distinct(rows, budget_of);
}

/// Writes one task's part of the page.
class section {
  public:
    section(std::string task, std::vector<const row*> rows, const std::vector<std::string>& policies)
        : task_(std::move(task)), all_(std::move(rows)), policies_(policies) {
        std::copy_if(all_.begin(), all_.end(), std::back_inserter(rows_),
                     [](const row* r) { return !r->error; });
        quality_ = quality_of(rows_);
    }

    [[nodiscard]] std::string text() {
        out_ = "<section><h2>" + escaped(task_) + "</h2>";
        if (rows_.empty()) {
            all_rows(true);
            return out_ + "</section>";
        }
        const row& first = *rows_.front();
        const bool budgets = budgets_of(rows_).size() > 1,
                   settings = lines_of(rows_).size() > policies_of(rows_).size();
        const char* const each = budgets && settings ? "budget and setting" : budgets ? "budget" : "setting";
        out_ += "<p>" + std::to_string(first.examples) + " example" + (first.examples == 1 ? "" : "s") +
                ", " + std::to_string(first.decoded_tokens) + " tokens decoded per policy" +
                (budgets || settings ? std::string(" and ") + each + ". A line joins those of a policy; the"
                                     : ". The") +
                " dashed line is the full cache.</p><div class=\"plots\">";
        double everything = 0;
        for (const row* r : rows_) everything = std::max(everything, r->kept_bytes.value_or(0));
        // Answers differ by a few tokens, and so does everything that was kept.
        scatter("Quality and what is kept", {"K and V kept, bytes", axis_kind::bytes, "everything"},
                &row::kept_bytes, 0.99 * everything);
        scatter("Quality and memory", {"memory of the cache, bytes", axis_kind::bytes, ""},
                &row::resident_bytes_peak, infinity);
        scatter("Quality and what is read", {"read per token, bytes", axis_kind::bytes, ""},
                &row::read_bytes_per_token, infinity);
        out_ += "</div>";
        legend();
        table();
        memory();
        phases();
        retained();
        all_rows(false);
        return out_ + "</section>";
    }

  private:
    [[nodiscard]] std::size_t style_of(const std::string& policy) const {
        return static_cast<std::size_t>(std::find(policies_.begin(), policies_.end(), policy) -
                                        policies_.begin());
    }

    /// Points at `strip_from` or more stand on the strip of the axis.
    void scatter(const char* title, const axis& x, std::optional<double> row::*cost, double strip_from) {
        std::vector<plot_series> all;
        std::optional<double> level;
        for (const auto& policy : policies_of(rows_)) {
            plot_series s{style_of(policy), {}};
            for (const row* r : rows_) {
                const auto y = quality_.of(*r);
                if (r->policy != policy || !y) continue;
                if (policy == "full") level = y;
                if (const auto& value = r->*cost)
                    s.points.push_back({*value < strip_from ? *value : infinity, *y,
                                        line_of(*r) + ", " + budget_of(*r) + ": " +
                                            number(y, quality_.pattern) + " at " + with_unit(*value)});
            }
            all.push_back(std::move(s));
        }
        out_ += std::string("<figure><figcaption>") + title + "</figcaption>" +
                plot(x, {quality_.name, quality_.kind, ""}, all, level) + "</figure>";
    }

    void legend() {
        out_ += "<ul class=\"legend\">";
        for (const auto& policy : policies_of(rows_))
            out_ += "<li><svg viewBox=\"0 0 16 16\" aria-hidden=\"true\">" + marker(style_of(policy), 8, 8) +
                    "</svg>" + escaped(policy) + "</li>";
        out_ += "</ul>";
    }

    /// What the colours of bars stand for.
    void colours(const std::vector<std::string>& names, std::span<const char* const> of) {
        out_ += "<ul class=\"legend\">";
        for (std::size_t i = 0; i < names.size(); ++i)
            out_ += std::string("<li><i style=\"background:") + of[i % of.size()] + "\"></i>" +
                    escaped(names[i]) + "</li>";
        out_ += "</ul>";
    }

    /// One line per policy and setting: its quality at every budget, and the cost at the last of them.
    void table() {
        const auto budgets = budgets_of(rows_);
        const std::array costs_of = {"perplexity ratio", "mass recall",   "output error", "kept",    "DRAM",
                                     "read / token",     "reads / token", "hit rate",     "tokens/s"};
        out_ += "<div class=\"scroll\"><table><thead><tr><th>policy</th>";
        for (const auto& b : budgets) out_ += "<th>" + escaped(quality_.name) + " @ " + escaped(b) + "</th>";
        for (const char* name : costs_of) out_ += std::string("<th>") + name + "</th>";
        out_ += "</tr></thead><tbody>";
        for (const auto& line : lines_of(all_)) {
            out_ += "<tr><td>" + escaped(line) + "</td>";
            const row* last = nullptr;
            for (const auto& b : budgets) {
                const auto at = std::find_if(rows_.begin(), rows_.end(), [&](const row* r) {
                    return line_of(*r) == line && budget_of(*r) == b;
                });
                cell(at == rows_.end() ? "–" : number(quality_.of(**at), quality_.pattern));
                if (at != rows_.end()) last = *at;
            }
            if (last == nullptr) {
                // Its cells so far are dashes, the reason takes the place of the others.
                const auto failed =
                    std::find_if(all_.begin(), all_.end(), [&](const row* r) { return line_of(*r) == line; });
                why(**failed, costs_of.size());
                continue;
            }
            cell(number(perplexity_ratio(*last), "%.3f"));
            cell(number(last->mass_recall, "%.3f"));
            cell(number(last->output_error, "%.3f"));
            costs(*last);
            out_ += "</tr>";
        }
        out_ += "</tbody></table></div>";
        if (budgets.size() > 1)
            out_ +=
                "<p>Columns without a budget in their head are those of the last budget a policy has.</p>";
    }

    void all_rows(bool open) {
        const std::array names = {"budget",           "accuracy", "95 %",    "nll",
                                  "perplexity ratio", "KL",       "top-1",   "mass recall",
                                  "output error",     "kept",     "DRAM",    "read / token",
                                  "reads / token",    "hit rate", "tokens/s"};
        out_ += std::string("<details") + (open ? " open" : "") +
                "><summary>All figures</summary><div class=\"scroll\"><table><thead><tr><th>policy</th>";
        for (const char* name : names) out_ += std::string("<th>") + name + "</th>";
        out_ += "</tr></thead><tbody>";
        for (const row* r : all_) {
            out_ += "<tr><td>" + escaped(line_of(*r)) + "</td>";
            cell(budget_of(*r));
            if (r->error) {
                why(*r, names.size() - 1);
                continue;
            }
            cell(number(r->accuracy, "%.2f"));
            cell(r->accuracy_ci95 ? number((*r->accuracy_ci95)[0], "%.2f") + " to " +
                                        number((*r->accuracy_ci95)[1], "%.2f")
                                  : "–");
            cell(number(r->nll, "%.4f"));
            cell(number(perplexity_ratio(*r), "%.4f"));
            cell(number(r->kl, "%.4f"));
            cell(number(r->top1_agreement, "%.3f"));
            cell(number(r->mass_recall, "%.4f"));
            cell(number(r->output_error, "%.4f"));
            costs(*r);
            out_ += "</tr>";
        }
        out_ += "</tbody></table></div></details>";
    }

    void costs(const row& r) {
        cell(bytes(r.kept_bytes));
        cell(bytes(r.resident_bytes_peak));
        cell(bytes(r.read_bytes_per_token));
        cell(number(r.reads_per_token, "%.1f"));
        cell(number(r.hit_rate, "%.2f"));
        cell(number(r.tokens_per_s, "%.0f"));
    }

    /// Ends a line of a table with the reason why there is nothing to show.
    void why(const row& r, std::size_t columns) {
        out_ += "<td class=\"why\" colspan=\"" + std::to_string(columns) + "\">" +
                escaped(r.error.value_or("")) + "</td></tr>";
    }

    void cell(const std::string& text) { out_ += "<td>" + escaped(text) + "</td>"; }

    /// What the caches' memory is for.
    void memory() {
        std::vector<const row*> known;
        std::copy_if(rows_.begin(), rows_.end(), std::back_inserter(known),
                     [](const row* r) { return r->raw_cache_bytes != 0; });
        if (known.empty()) return;
        out_ +=
            "<details><summary>Memory by part</summary><p>Bytes, and their share of the raw cache: all keys "
            "and values as 16-bit numbers.</p><div class=\"scroll\"><table><thead><tr><th>policy</th>"
            "<th>budget</th><th>total</th>";
        for (const auto& part : known.front()->bytes_by_part) out_ += "<th>" + escaped(part.first) + "</th>";
        out_ += "</tr></thead><tbody>";
        for (const row* r : known) {
            const auto amount = [&](std::uint64_t size) {
                const auto n = static_cast<double>(size);
                cell(bytes(n) + ", " + number(100 * n / static_cast<double>(r->raw_cache_bytes), "%.1f %%"));
            };
            out_ += "<tr><td>" + escaped(line_of(*r)) + "</td>";
            cell(budget_of(*r));
            std::uint64_t total = 0;
            for (const auto& part : r->bytes_by_part) total += part.second;
            amount(total);
            for (const auto& part : r->bytes_by_part) amount(part.second);
            out_ += "</tr>";
        }
        out_ += "</tbody></table></div></details>";
    }

    void phases() {
        std::vector<const row*> timed;
        std::copy_if(rows_.begin(), rows_.end(), std::back_inserter(timed),
                     [](const row* r) { return !r->phase_us.empty(); });
        if (timed.empty()) return;
        out_ += "<h3>Where the cache spends its time</h3><p>Microseconds per decoded token, summed over the "
                "threads that work for the cache.</p>";
        std::vector<std::string> names;
        for (const auto& phase : timed.front()->phase_us) names.push_back(phase.first);
        colours(names, phase_colours);
        const auto total = [](const row* r) {
            double sum = 0;
            for (const auto& phase : r->phase_us) sum += phase.second;
            return sum;
        };
        double longest = 1e-9;
        for (const row* r : timed) longest = std::max(longest, total(r));
        const auto budgets = budgets_of(timed);
        for (const auto& b : budgets) {
            out_ += std::string("<details") + (b == budgets.back() ? " open" : "") + "><summary>" +
                    escaped(b) + "</summary><div class=\"bars\">";
            for (const row* r : timed)
                if (budget_of(*r) == b) bar(*r, total(r), longest);
            out_ += "</div></details>";
        }
    }

    void bar(const row& r, double total, double longest) {
        out_ += "<span>" + escaped(line_of(r)) + "</span><div>";
        for (std::size_t i = 0; i < r.phase_us.size(); ++i) {
            const auto& [name, microseconds] = r.phase_us[i];
            out_ += "<i title=\"" + escaped(name) + ": " + number(microseconds, "%.1f µs") +
                    "\" style=\"width:" + number(microseconds, "%.2f%%", longest / 100) +
                    ";background:" + phase_colours[i % phase_colours.size()] + "\"></i>";
        }
        out_ += "</div><em>" + number(total, "%.0f µs") + "</em>";
    }

    /// Of policies whose records have sizes of their own: what they make of each kind of token, and in each layer.
    void retained() {
        std::vector<const row*> ragged;
        std::copy_if(rows_.begin(), rows_.end(), std::back_inserter(ragged),
                     [](const row* r) { return !r->retained_by_layer.empty(); });
        if (ragged.empty()) return;
        out_ += "<h3>What a token takes</h3><p>Share of its row of 16-bit numbers, headers of records "
                "included; sinks and window are encoded for this as well.</p>";
        colours({"keys", "values"}, retained_colours);
        for (const row* r : ragged) {
            out_ += "<details open><summary>" + escaped(line_of(*r) + ", " + budget_of(*r)) +
                    "</summary><div class=\"bars\">";
            for (const auto* all : {&r->retained_by_kind, &r->retained_by_layer})
                for (const row::retained_share& s : *all) {
                    out_ += "<span>" + escaped(s.of) + "</span><div>";
                    for (const auto& [what, value, colour] :
                         {std::tuple{"keys", s.keys, retained_colours[0]},
                          std::tuple{"values", s.values, retained_colours[1]}})
                        out_ += std::string("<i title=\"") + what + ": " + number(value, "%.3f") +
                                "\" style=\"width:" + number(std::min(value, 1.0), "%.2f%%", 1.0 / 50) +
                                ";background:" + colour + "\"></i>";
                    out_ += "</div><em>" + number((s.keys + s.values) / 2, "%.3f") + "</em>";
                }
            out_ += "</div></details>";
        }
    }

    static constexpr double infinity = std::numeric_limits<double>::infinity();

    std::string task_;
    std::vector<const row*> all_;
    std::vector<const row*> rows_;             ///< of the policies that ran
    const std::vector<std::string>& policies_; ///< of the whole page: their places are their styles
    quality quality_;
    std::string out_;
};

} // namespace

std::string to_html(const report& r) {
    std::string out = "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
                      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><title>" +
                      escaped(r.title) + "</title><style>" + style + "</style></head><body><h1>" +
                      escaped(r.title) + "</h1><ul class=\"facts\">";
    for (const auto& [what, value] : r.facts)
        out += "<li>" + escaped(what) + ": <b>" + escaped(value) + "</b></li>";
    out += "</ul>";
    std::vector<const row*> all;
    for (const row& one : r.rows) all.push_back(&one);
    if (all.empty()) return out + "<p>There are no rows.</p></body></html>";
    const auto policies = policies_of(all);
    for (const auto& task : distinct(all, [](const row& one) { return heading_of(one); })) {
        std::vector<const row*> own;
        std::copy_if(all.begin(), all.end(), std::back_inserter(own),
                     [&](const row* one) { return heading_of(*one) == task; });
        out += section(task, std::move(own), policies).text();
    }
    return out + "</body></html>";
}

} // namespace eval
