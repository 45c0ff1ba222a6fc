// SPDX-License-Identifier: MIT
#include "report_html.hpp"

#include "conclusion.hpp"
#include "plot.hpp"
#include "report_bars.hpp"
#include "report_style.hpp"
#include "report_text.hpp"

#include <algorithm>
#include <functional>
#include <iterator>
#include <limits>

namespace eval {

namespace {

constexpr const char* how_to_read =
    "<details><summary>How to read this</summary><p>Every policy got the same documents, questions and text. "
    "<b>Accuracy</b>: share of answers that begin with the expected text. <b>Perplexity ratio</b>: how much "
    "less likely "
    "running text is than with everything attended; 1 is equal. <b>KL</b>: divergence of the next token's "
    "distribution "
    "from the full cache's; 0 is equal. <b>Attended</b>: entries that each head may attend per step; "
    "<b>kept</b>: entries "
    "that survive where a policy evicts. <b>DRAM</b>: the most that the cache held in memory, all its tables "
    "included, and "
    "the saving against the full cache. <b>Hit rate</b>: share of the chosen bytes that were in memory "
    "before the step "
    "read anything. Bytes, reads and tokens per second are those of decoding.</p></details>";

/// What was said, without the white space around it.
std::string trimmed(const std::string& text) {
    constexpr const char* white = " \t\r\n";
    const std::size_t first = text.find_first_not_of(white);
    return first == std::string::npos ? "nothing"
                                      : text.substr(first, text.find_last_not_of(white) - first + 1);
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
        says();
        const row& first = *rows_.front();
        const bool budgets = budgets_of(rows_).size() > 1,
                   settings = lines_of(rows_).size() > policies_of(rows_).size();
        const char* const each = budgets && settings ? "budget and setting" : budgets ? "budget" : "setting";
        out_ += "<p>" + std::to_string(first.examples) + " example" + (first.examples == 1 ? "" : "s") +
                ", " + std::to_string(first.decoded_tokens) + " tokens decoded per policy" +
                (budgets || settings ? std::string(" and ") + each + ". A line joins those of a policy; the"
                                     : ". The") +
                " dashed line is the full cache, a bar a 95 % interval. Better is " +
                (quality_.kind == axis_kind::share ? "up" : "down") +
                " and to the left.</p><div class=\"plots\">";
        double everything = 0;
        for (const row* r : rows_) everything = std::max(everything, r->kept_bytes.value_or(0));
        // Answers differ by a few tokens, and so does everything that was kept.
        scatter("Quality and what is kept", {"K and V kept, bytes", axis_kind::bytes, "everything"},
                &row::kept_bytes, 0.99 * everything);
        scatter("Quality and memory", {"memory of the cache, bytes", axis_kind::bytes, ""},
                &row::resident_bytes_peak, infinity);
        scatter("Quality and what is read", {"read per token, bytes", axis_kind::bytes, ""},
                &row::read_bytes_per_token, infinity);
        legend();
        out_ += "</div>";
        table();
        first_answers();
        memory();
        out_ += phase_bars(rows_);
        out_ += kept_bars(rows_);
        out_ += retained_bars(rows_);
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
                                            number(y, quality_.pattern) + " at " + with_unit(*value),
                                        quality_.kind == axis_kind::share ? r->accuracy_ci95 : std::nullopt});
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

    /// A column of a table: its head, and what stands there for a row.
    struct column {
        std::string name;
        std::function<std::string(const row&)> of;
    };

    /// Those that say something of any row.
    [[nodiscard]] std::vector<column> filled(std::vector<column> all) const {
        std::erase_if(all, [&](const column& c) {
            return std::all_of(rows_.begin(), rows_.end(), [&](const row* r) { return c.of(*r) == "–"; });
        });
        return all;
    }

    void head(const std::vector<column>& columns) {
        for (const column& c : columns) out_ += "<th>" + escaped(c.name) + "</th>";
        out_ += "</tr></thead><tbody>";
    }

    /// What a policy costs.
    [[nodiscard]] std::vector<column> costs() const {
        const auto full =
            std::find_if(rows_.begin(), rows_.end(), [](const row* r) { return r->policy == "full"; });
        const auto all = full == rows_.end() ? std::nullopt : (*full)->resident_bytes_peak;
        return {{"kept", [](const row& r) { return bytes(r.kept_bytes); }},
                {"DRAM",
                 [all](const row& r) {
                     const std::string text = bytes(r.resident_bytes_peak);
                     if (!all || !r.resident_bytes_peak || r.policy == "full") return text;
                     return text + ", " + saving(*r.resident_bytes_peak, *all);
                 }},
                {"read / token", [](const row& r) { return bytes(r.read_bytes_per_token); }},
                {"reads / token", [](const row& r) { return number(r.reads_per_token, "%.1f"); }},
                {"hit rate", [](const row& r) { return number(r.hit_rate, "%.2f"); }},
                {"tokens/s", [](const row& r) { return number(r.tokens_per_s, "%.0f"); }}};
    }

    /// One line per policy and setting: its quality at every budget, and the cost at the last of them.
    void table() {
        const auto budgets = budgets_of(rows_);
        std::vector<column> columns = {
            {"perplexity ratio", [](const row& r) { return number(perplexity_ratio(r), "%.3f"); }},
            {"mass recall", [](const row& r) { return number(r.mass_recall, "%.3f"); }},
            {"output error", [](const row& r) { return number(r.output_error, "%.3f"); }}};
        for (column& c : costs()) columns.push_back(std::move(c));
        columns = filled(std::move(columns));
        out_ += "<div class=\"scroll\"><table><thead><tr><th>policy</th>";
        for (const auto& b : budgets) out_ += "<th>" + escaped(quality_.name) + " @ " + escaped(b) + "</th>";
        head(columns);
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
                why(**failed, columns.size());
                continue;
            }
            cells(columns, *last);
        }
        out_ += "</tbody></table></div>";
        if (budgets.size() > 1)
            out_ +=
                "<p>Columns without a budget in their head are those of the last budget a policy has.</p>";
    }

    void all_rows(bool open) {
        std::vector<column> columns = {
            {"accuracy", [](const row& r) { return number(r.accuracy, "%.2f"); }},
            {"95 %",
             [](const row& r) {
                 return r.accuracy_ci95 ? number((*r.accuracy_ci95)[0], "%.2f") + " to " +
                                              number((*r.accuracy_ci95)[1], "%.2f")
                                        : "–";
             }},
            {"nll", [](const row& r) { return number(r.nll, "%.4f"); }},
            {"perplexity ratio", [](const row& r) { return number(perplexity_ratio(r), "%.4f"); }},
            {"KL", [](const row& r) { return number(r.kl, "%.4f"); }},
            {"top-1", [](const row& r) { return number(r.top1_agreement, "%.3f"); }},
            {"mass recall", [](const row& r) { return number(r.mass_recall, "%.4f"); }},
            {"output error", [](const row& r) { return number(r.output_error, "%.4f"); }}};
        for (column& c : costs()) columns.push_back(std::move(c));
        columns = filled(std::move(columns));
        columns.insert(columns.begin(), {"budget", budget_of});
        out_ += std::string("<details") + (open ? " open" : "") +
                "><summary>All figures</summary><div class=\"scroll\"><table><thead><tr><th>policy</th>";
        head(columns);
        for (const row* r : all_) {
            out_ += "<tr><td>" + escaped(line_of(*r)) + "</td>";
            if (r->error) {
                cell(budget_of(*r));
                why(*r, std::max<std::size_t>(1, columns.size() - 1));
                continue;
            }
            cells(columns, *r);
        }
        out_ += "</tbody></table></div></details>";
    }

    void cells(const std::vector<column>& columns, const row& r) {
        for (const column& c : columns) cell(c.of(r));
        out_ += "</tr>";
    }

    void says() {
        const auto sentences = conclusions(rows_);
        if (sentences.empty()) return;
        out_ += "<ul class=\"says\">";
        for (const auto& sentence : sentences) out_ += "<li>" + escaped(sentence) + "</li>";
        out_ += "</ul>";
    }

    /// The same question to all: what each of them said.
    void first_answers() {
        const auto asked =
            std::find_if(rows_.begin(), rows_.end(), [](const row* r) { return r->first.has_value(); });
        if (asked == rows_.end()) return;
        const auto budgets = budgets_of(rows_);
        out_ += "<details open><summary>The first question, and what each policy said</summary><p>" +
                escaped((*asked)->first->question) + " <b>" + escaped((*asked)->first->expected) +
                "</b></p><div class=\"scroll\"><table><thead><tr><th>policy</th>";
        for (const auto& b : budgets) out_ += "<th>" + escaped(b) + "</th>";
        out_ += "</tr></thead><tbody>";
        for (const auto& line : lines_of(rows_)) {
            out_ += "<tr><td>" + escaped(line) + "</td>";
            for (const auto& b : budgets) {
                const auto at = std::find_if(rows_.begin(), rows_.end(), [&](const row* r) {
                    return line_of(*r) == line && budget_of(*r) == b && r->first;
                });
                if (at == rows_.end()) {
                    cell("–");
                    continue;
                }
                const row::first_answer& said = *(*at)->first;
                cell(trimmed(said.given) + (said.right ? ", right" : ", wrong"));
            }
            out_ += "</tr>";
        }
        out_ += "</tbody></table></div></details>";
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

    static constexpr double infinity = std::numeric_limits<double>::infinity();

    std::string task_;
    std::vector<const row*> all_;
    std::vector<const row*> rows_;             ///< of the policies that ran
    const std::vector<std::string>& policies_; ///< of the whole page: their places are their styles
    quality quality_;
    std::string out_;
};

} // namespace

std::string page(const std::string& title, const std::vector<std::pair<std::string, std::string>>& facts,
                 const std::string& body) {
    std::string out = "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
                      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><title>" +
                      escaped(title) + "</title><style>" + report_style + "</style></head><body><h1>" +
                      escaped(title) + "</h1><ul class=\"facts\">";
    for (const auto& [what, value] : facts)
        out += "<li>" + escaped(what) + ": <b>" + escaped(value) + "</b></li>";
    return out + "</ul>" + body + "</body></html>";
}

std::string to_html(const report& r) {
    std::string out = how_to_read;
    std::vector<const row*> all;
    for (const row& one : r.rows) all.push_back(&one);
    if (all.empty()) return page(r.title, r.facts, out + "<p>There are no rows.</p>");
    const auto policies = policies_of(all);
    for (const auto& task : distinct(all, [](const row& one) { return heading_of(one); })) {
        std::vector<const row*> own;
        std::copy_if(all.begin(), all.end(), std::back_inserter(own),
                     [&](const row* one) { return heading_of(*one) == task; });
        out += section(task, std::move(own), policies).text();
    }
    return page(r.title, r.facts, out);
}

} // namespace eval
