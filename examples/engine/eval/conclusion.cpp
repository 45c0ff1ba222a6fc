// SPDX-License-Identifier: MIT
#include "conclusion.hpp"

#include "plot.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <sstream>

namespace eval {

namespace {

using list = std::vector<const row*>;

std::string number(const char* pattern, double value) {
    char text[32];
    std::snprintf(text, sizeof text, pattern, value);
    return text;
}

/// "a, b and c", at most `most` of them by name.
std::string joined(const std::vector<std::string>& parts, std::size_t most = 6) {
    std::string text;
    const std::size_t named = std::min(parts.size(), most);
    for (std::size_t i = 0; i < named; ++i)
        text += (i == 0 ? "" : i + 1 == parts.size() ? " and " : ", ") + parts[i];
    if (named < parts.size()) text += " and " + std::to_string(parts.size() - named) + " more";
    return text;
}

std::size_t right_of(const row& r) {
    return static_cast<std::size_t>(std::lround(*r.accuracy * static_cast<double>(r.examples)));
}

/// Of every line that with the most entries attended, in the order of the lines.
list at_largest_budget(const list& all) {
    list out;
    for (const row* r : all) {
        const auto same =
            std::find_if(out.begin(), out.end(), [&](const row* o) { return line_of(*o) == line_of(*r); });
        if (same == out.end())
            out.push_back(r);
        else if (r->attend_tokens > (*same)->attend_tokens)
            *same = r;
    }
    return out;
}

template <class Cost> const row* cheapest(const list& rows, const Cost& cost) {
    const auto known = [&](const row* r) { return cost(*r).has_value(); };
    list those;
    std::copy_if(rows.begin(), rows.end(), std::back_inserter(those), known);
    const auto least = std::min_element(those.begin(), those.end(),
                                        [&](const row* a, const row* b) { return *cost(*a) < *cost(*b); });
    return least == those.end() ? nullptr : *least;
}

/// The least memory and the fewest bytes read among policies of equal quality.
std::string costs_of(const list& equal, const row& full) {
    std::string text;
    if (const row* r = cheapest(equal, [](const row& x) { return x.resident_bytes_peak; })) {
        text += " Of these " + line_of(*r) + " takes the least memory, " + with_unit(*r->resident_bytes_peak);
        if (full.resident_bytes_peak)
            text += " (" + saving(*r->resident_bytes_peak, *full.resident_bytes_peak) +
                    " against the full cache)";
        list readers; // what evicts has nothing to read
        std::copy_if(equal.begin(), equal.end(), std::back_inserter(readers),
                     [](const row* x) { return x->read_bytes_per_token.value_or(0) > 0; });
        if (const row* reads = cheapest(readers, [](const row& x) { return x.read_bytes_per_token; }))
            text += ", and " + (reads == r ? "" : line_of(*reads) + " ") + "reads the fewest bytes, " +
                    with_unit(*reads->read_bytes_per_token) + " per token";
        text += ".";
    }
    return text;
}

/// Right answers. Two shares whose 95 % intervals overlap are not told apart.
void answers(const list& all, const row& full, std::vector<std::string>& out) {
    const auto count = [&](const row& r) { return std::to_string(right_of(r)); };
    out.push_back("With everything attended " + count(full) + " of " + std::to_string(full.examples) +
                  " answers are right" +
                  (full.resident_bytes_peak
                       ? "; that cache takes " + with_unit(*full.resident_bytes_peak) + " of memory."
                       : "."));
    list equal, behind;
    for (const row* r : at_largest_budget(all)) {
        if (r->policy == "full" || !r->accuracy || !r->accuracy_ci95 || !full.accuracy_ci95) continue;
        ((*r->accuracy_ci95)[1] >= (*full.accuracy_ci95)[0] ? equal : behind).push_back(r);
    }
    const auto best_first = [](const row* a, const row* b) { return *a->accuracy > *b->accuracy; };
    std::stable_sort(equal.begin(), equal.end(), best_first);
    std::stable_sort(behind.begin(), behind.end(), best_first);
    const auto named = [&](const list& rows) {
        std::vector<std::string> names;
        for (const row* r : rows) names.push_back(line_of(*r) + " (" + count(*r) + ")");
        return joined(names);
    };
    if (!equal.empty())
        out.push_back(std::to_string(full.examples) + " questions cannot tell " + named(equal) +
                      " from that: the 95 % intervals overlap." + costs_of(equal, full));
    std::vector<std::string> less;
    for (const row* r : equal)
        for (const row* other : all)
            if (line_of(*other) == line_of(*r) && other->attend_tokens < r->attend_tokens && other->accuracy)
                less.push_back(line_of(*r) + " " + count(*other) + " at " +
                               std::to_string(other->attend_tokens));
    if (!less.empty()) out.push_back("Right answers with fewer entries attended: " + joined(less, 12) + ".");
    if (!behind.empty()) out.push_back("Fewer right answers, beyond chance: " + named(behind) + ".");
    list blind;
    std::copy_if(behind.begin(), behind.end(), std::back_inserter(blind),
                 [](const row* r) { return r->evicts && r->question == "hidden"; });
    std::vector<std::string> names;
    for (const row* r : blind) names.push_back(line_of(*r));
    if (!names.empty())
        out.push_back(
            joined(names) + (names.size() == 1 ? " chooses" : " choose") +
            " what to keep when the document ends, and the question comes after that: what it asks for had "
            "no reason to be kept. With the question in the prompt (kvtl-eval --question-aware) the same "
            "policies look for it.");
}

/// Running text: nearest to the full cache first, by how much less likely the text becomes.
void text(const list& all, const row& full, std::vector<std::string>& out) {
    const bool ratio = perplexity_ratio(full).has_value();
    const auto loss = [&](const row& r) { return ratio ? perplexity_ratio(r) : r.kl; };
    list rows;
    const list largest = at_largest_budget(all);
    std::copy_if(largest.begin(), largest.end(), std::back_inserter(rows),
                 [&](const row* r) { return r->policy != "full" && loss(*r); });
    if (rows.empty()) return;
    std::stable_sort(rows.begin(), rows.end(),
                     [&](const row* a, const row* b) { return *loss(*a) < *loss(*b); });
    const auto named = [&](const row& r) {
        return line_of(r) + " (" + number(ratio ? "%.3f" : "%.4f", *loss(r)) + ")";
    };
    std::vector<std::string> nearest;
    for (std::size_t i = 0; i < std::min<std::size_t>(3, rows.size()); ++i)
        nearest.push_back(named(*rows[i]));
    out.push_back(std::string("Nearest to the full cache") +
                  (ratio ? ", as a factor of its perplexity: " : ", by divergence: ") + joined(nearest) +
                  (rows.size() > 3 ? "; furthest: " + named(*rows.back()) + "." : "."));
}

} // namespace

std::string saving(double bytes, double of_full) {
    const double percent = 100 * (bytes / of_full - 1);
    return number(percent > 0.5 ? "+%.0f %%" : "−%.0f %%", std::fabs(percent));
}

std::vector<std::string> conclusions(const std::vector<const row*>& rows) {
    std::vector<std::string> out;
    list ran;
    std::copy_if(rows.begin(), rows.end(), std::back_inserter(ran), [](const row* r) { return !r->error; });
    const auto full = std::find_if(ran.begin(), ran.end(), [](const row* r) { return r->policy == "full"; });
    if (full == ran.end() ||
        std::all_of(ran.begin(), ran.end(), [](const row* r) { return r->policy == "full"; }))
        return out;
    if ((*full)->accuracy)
        answers(ran, **full, out);
    else
        text(ran, **full, out);
    return out;
}

void print_sentences(std::FILE* out, const char* heading, const std::vector<std::string>& sentences) {
    constexpr std::size_t width = 96;
    if (!sentences.empty()) std::fprintf(out, "\n%s\n", heading);
    for (const std::string& sentence : sentences) {
        std::istringstream words(sentence);
        std::string line = " ";
        for (std::string word; words >> word; line += ' ' + word)
            if (line.size() + 1 + word.size() > width) {
                std::fprintf(out, "%s\n", line.c_str());
                line = "   ";
            }
        std::fprintf(out, "%s\n", line.c_str());
    }
}

} // namespace eval
