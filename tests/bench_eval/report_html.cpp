// The report: every policy in plots, legend and tables; self-contained and well-formed.
// SPDX-License-Identifier: MIT
#include "report_html.hpp"

#include "plot.hpp"

#include <doctest/doctest.h>

#include <set>
#include <string>
#include <vector>

namespace {

eval::report many_policies() {
    eval::report r;
    r.title = "A <title> & more";
    r.facts = {{"device", "uring"}};
    for (const char* task : {"needle:gen", "nll:builtin"})
        for (int p = 0; p < 15; ++p)
            for (const std::size_t budget : {64U, 256U}) {
                eval::row& row = r.rows.emplace_back();
                row.policy = p == 0 ? "full" : "policy_" + std::to_string(p);
                row.task = task;
                row.attend_tokens = budget;
                if (task[1] == 'e') row.accuracy = 1.0 / (p + 1);
                row.kl = 0.01 * p;
                row.kept_bytes = 1e6;
                row.read_bytes_per_token = 1000.0 * p * static_cast<double>(budget);
                row.examples = 50;
                row.phase_us = {{"score", 10.0 + p}, {"fetch_wait", 200}};
            }
    return r;
}

std::size_t count(const std::string& text, const std::string& part) {
    std::size_t n = 0;
    for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
    return n;
}

TEST_CASE("every policy is in legend, table, bars and plots of every task") {
    const std::string html = eval::to_html(many_policies());
    for (int p = 1; p < 15; ++p) {
        const std::string name = "policy_" + std::to_string(p);
        CHECK(count(html, "</svg>" + name + "</li>") == 2);                // legends
        CHECK(count(html, "<tr><td>" + name + "</td>") == 2 + 2 * 2);      // a line each, and all figures
        CHECK(count(html, "<span>" + name + "</span>") == 2 * 2);          // bars
        CHECK(count(html, "<title>" + name + ", 64 attended: ") == 2 * 2); // points of two plots
    }
    CHECK(count(html, "<polyline") > 40);
    CHECK(html.find("KL(full ‖ policy), nats") != std::string::npos);
    CHECK(html.find("read per token, bytes") != std::string::npos);
}

TEST_CASE("conclusions: who keeps up with the full cache, at what cost, and who does not") {
    eval::report r;
    const auto add = [&](const char* policy, double accuracy, double memory, double read) -> eval::row& {
        eval::row& row = r.rows.emplace_back();
        row.policy = policy;
        row.task = "needle:gen";
        row.question = "hidden";
        row.attend_tokens = 64;
        row.accuracy = accuracy;
        row.accuracy_ci95 = {{accuracy - 0.1, accuracy + 0.1}};
        row.resident_bytes_peak = memory;
        row.read_bytes_per_token = read;
        row.examples = 20;
        return row;
    };
    CHECK(eval::to_html(r).find("class=\"says\"") == std::string::npos);
    add("full", 1, 8 << 20, 0);
    CHECK(eval::to_html(r).find("class=\"says\"") == std::string::npos); // nothing to compare with
    add("near", 0.7, 6 << 20, 1024).attend_tokens = 32;
    add("near", 0.85, 6 << 20, 4096);
    add("small", 0.95, 2 << 20, 8192);
    add("lost", 0.5, 1 << 20, 0).evicts = true;
    add("also_lost", 0.6, 1 << 20, 1024);
    const std::string html = eval::to_html(r);
    for (const std::string sentence :
         {"With everything attended 20 of 20 answers are right; that cache takes 8 MiB of memory.",
          "20 questions cannot tell small (19) and near (17) from that: the 95 % intervals overlap.",
          "Of these small takes the least memory, 2 MiB (−75 % against the full cache), and near reads the "
          "fewest bytes, 4 KiB per token.",
          "Right answers with fewer entries attended: near 14 at 32.",
          "Fewer right answers, beyond chance: also_lost (12) and lost (10).",
          "<li>lost chooses what to keep"})
        CHECK_MESSAGE(html.find(sentence) != std::string::npos, sentence);
    r.rows[4].question = r.rows[5].question = "known"; // then eviction has no such excuse
    CHECK(eval::to_html(r).find("chooses what to keep") == std::string::npos);

    for (eval::row& row : r.rows) {
        row.question.clear();
        row.nll_full = 2;
        row.nll = 2 + (1 - *row.accuracy) / 10;
        row.accuracy.reset();
        row.accuracy_ci95.reset();
    }
    CHECK(
        eval::to_html(r).find("Nearest to the full cache, as a factor of its perplexity: small (1.005), near "
                              "(1.015) and also_lost (1.041); furthest: lost (1.051).") != std::string::npos);
}

TEST_CASE("columns without a figure are left out, memory is told as a saving, intervals are drawn") {
    eval::report r = many_policies();
    for (eval::row& row : r.rows) row.resident_bytes_peak = row.policy == "full" ? 8 << 20 : 2 << 20;
    r.rows[4].accuracy_ci95 = {{0.25, 0.5}};
    const std::string html = eval::to_html(r);
    CHECK(html.find("<th>hit rate</th>") == std::string::npos);
    CHECK(html.find("<th>mass recall</th>") == std::string::npos);
    CHECK(html.find("<th>read / token</th>") != std::string::npos);
    CHECK(count(html, "<td>2 MiB, −75 %</td>") == 2 * 14 + 2 * 28);
    CHECK(count(html, "<line class=\"likely\"") == 3); // plots
}

TEST_CASE("the first question with the answer of every policy") {
    eval::report r = many_policies();
    CHECK(eval::to_html(r).find("The first question") == std::string::npos);
    for (eval::row& row : r.rows) {
        const bool right = row.policy != "policy_3";
        row.first = {"Which <code>?", "48213", right ? " 48213." : " \n", right};
    }
    const std::string html = eval::to_html(r);
    CHECK(count(html, "Which &lt;code&gt;? <b>48213</b>") == 2);
    CHECK(count(html, "<td>48213., right</td>") == 2 * 28);
    CHECK(count(html, "<td>nothing, wrong</td>") == 2 * 2);
}

TEST_CASE("what the memory is for: bytes of each part and their share, of rows that know it") {
    eval::report r = many_policies();
    CHECK(eval::to_html(r).find("Memory by part") == std::string::npos);
    for (eval::row& row : r.rows)
        if (row.policy == "policy_2") {
            row.bytes_by_part = {{"index", 1 << 20}, {"frames", 3 << 20}};
            row.raw_cache_bytes = 16 << 20;
        }
    const std::string html = eval::to_html(r);
    CHECK(count(html, "Memory by part") == 2); // tasks
    CHECK(count(html, "<th>total</th><th>index</th><th>frames</th>") == 2);
    CHECK(count(html, ", 25.0 %</td>") == 4); // and budgets
    CHECK(count(html, ", 6.2 %</td>") == 4);
}

TEST_CASE("budgets of policies that evict are what they keep; questions hidden and known stand apart") {
    eval::report r;
    for (const char* question : {"hidden", "known"})
        for (const std::size_t budget : {64U, 256U})
            for (const char* policy : {"quest", "snapkv_group", "composed"}) {
                eval::row& row = r.rows.emplace_back();
                row.policy = policy;
                row.task = "needle:gen";
                row.question = question;
                row.attend_tokens = budget;
                if (policy[0] == 's') row.keep_tokens = budget;
                if (policy[0] == 'c') row.keep_tokens = 512;
                row.accuracy = 0.5;
                row.kept_bytes = policy[0] == 's' ? 3072.0 * static_cast<double>(budget) : 6e6;
                row.examples = 1;
            }
    const std::string html = eval::to_html(r);
    for (const char* question : {"hidden", "known"})
        CHECK(count(html, std::string("<h2>needle:gen: question ") + question + " while compressing</h2>") ==
              1);
    for (const char* head : {"64 attended", "64 kept", "256 attended", "256 kept", "512 kept, 64 attended"})
        CHECK(count(html, std::string("<th>accuracy @ ") + head + "</th>") == 2);
    CHECK(count(html, "<title>snapkv_group, 64 kept: 0.50 at 192 KiB") == 2);
    CHECK(count(html, "<title>snapkv_group, 256 kept: 0.50 at 768 KiB") == 2);
    CHECK(count(html, "<title>quest, 64 attended: ") == 2);
}

TEST_CASE("settings of a policy: a line of the tables each, one line in the plots") {
    eval::report r;
    for (const char* variant : {"rate=.20", "rate=.47"}) {
        eval::row& row = r.rows.emplace_back();
        row.policy = "dynakv_lr";
        row.variant = variant;
        row.task = "nll:builtin";
        row.attend_tokens = 64;
        row.kl = 0.1;
        row.kept_bytes = 1024;
        row.phase_us = {{"score", 10.0}};
    }
    const std::string html = eval::to_html(r);
    for (const char* line : {"dynakv_lr, rate=.20", "dynakv_lr, rate=.47"}) {
        CHECK(count(html, std::string("<tr><td>") + line + "</td>") == 2);
        CHECK(count(html, std::string("<span>") + line + "</span>") == 1);
        CHECK(count(html, std::string("<title>") + line + ", 64 attended: ") == 1);
    }
    CHECK(count(html, "</svg>dynakv_lr</li>") == 1);
    CHECK(count(html, "<polyline") == 1);
    CHECK(count(html, "<th>KL(full ‖ policy), nats @ 64 attended</th>") == 1);
    CHECK(html.find("per policy and setting. A line joins those of a policy") != std::string::npos);
}

TEST_CASE("a policy that could not run says why, once per table, and is in no plot") {
    eval::report r = many_policies();
    for (const std::size_t budget : {64U, 256U}) {
        eval::row& row = r.rows.emplace_back();
        row.policy = "too_big";
        row.task = "needle:gen";
        row.attend_tokens = budget;
        row.error = "needs <more>";
    }
    r.rows.emplace_back(r.rows.back()).policy = "half"; // of its two budgets one ran
    r.rows.emplace_back(r.rows.front()).policy = "half";
    const std::string html = eval::to_html(r);
    CHECK(count(html, "<tr><td>too_big</td>") == 1 + 2);
    CHECK(count(html, "<td class=\"why\" colspan=\"2\">needs &lt;more&gt;</td>") == 1);
    CHECK(count(html, "<td class=\"why\" colspan=\"4\">needs &lt;more&gt;</td>") == 3);
    CHECK(count(html, "</svg>too_big</li>") == 0);
    CHECK(count(html, "<title>too_big") == 0);
    CHECK(count(html, "</svg>half</li>") == 1);
    CHECK(count(html, "<title>half, 64 attended: ") == 2);
    CHECK(count(html, "<title>half, 256 attended: ") == 0);

    eval::row alone;
    alone.policy = "too_big";
    alone.task = "needle:gen";
    alone.error = "needs more";
    const std::string nothing = eval::to_html({"t", {}, {alone}});
    CHECK(count(nothing, ">needs more</td>") == 1);
    CHECK(count(nothing, "<svg") == 0);
}

TEST_CASE("policies that keep everything stand side by side, those that evict at their bytes") {
    eval::report r = many_policies();
    r.rows.resize(30); // needle:gen only
    const auto places = [&] {
        const std::string html = eval::to_html(r);
        const std::string plot = html.substr(html.find("Quality and what is kept"));
        std::set<std::string> xs;
        for (std::size_t p = 0; p < 15; p += 7) { // these are circles, the points of the first budget
            const std::string name = p == 0 ? "full" : "policy_" + std::to_string(p);
            const std::string before = plot.substr(0, plot.find("<title>" + name + ", 64"));
            const std::size_t at = before.rfind("cx=\"") + 4;
            xs.insert(before.substr(at, before.find('"', at) - at));
        }
        return xs;
    };
    CHECK(places().size() == 3);
    CHECK(eval::to_html(r).find(">everything</text>") != std::string::npos);
    const std::string page = eval::to_html(r);
    const std::size_t plot = page.find("Quality and what is kept");
    const std::string kept = page.substr(plot, page.find("</svg>", plot) - plot);
    CHECK(kept.find(">1 MiB</text>") == std::string::npos); // an axis without points has no ticks
    for (eval::row& row : r.rows)
        if (row.policy == "policy_7" || row.policy == "policy_14") row.kept_bytes = 2e5;
    CHECK(places().size() == 2);
    CHECK(eval::to_html(r).find(">256 KiB</text>") != std::string::npos);
}

TEST_CASE("what each layer keeps: bars of policies that evict") {
    eval::report r = many_policies();
    CHECK(eval::to_html(r).find("What each layer keeps") == std::string::npos);
    r.rows[2].kept_by_layer = {30, 120};
    r.rows[5].kept_by_layer = {240, 60};
    const std::string html = eval::to_html(r);
    CHECK(count(html, "What each layer keeps") == 1);
    CHECK(html.find("<span>layer 1</span><div><i style=\"width:50.00%;") !=
          std::string::npos); // of the most of all
    CHECK(html.find("<span>layer 0</span><div><i style=\"width:100.00%;") != std::string::npos);
    CHECK(html.find("<em>30</em>") != std::string::npos);
}

TEST_CASE("what a token takes: bars by kind and layer, where tokens differ") {
    eval::report r = many_policies();
    CHECK(eval::to_html(r).find("What a token takes") == std::string::npos);
    r.rows[2].retained_by_kind = {{"first", 0.25, 0.75}, {"rare", 0.1, 0.2}};
    r.rows[2].retained_by_layer = {{"layer 0", 0.125, 2.0}};
    const std::string html = eval::to_html(r);
    CHECK(count(html, "What a token takes") == 1);
    CHECK(html.find("<span>first</span><div><i title=\"keys: 0.250\" style=\"width:12.50%;") !=
          std::string::npos);
    CHECK(html.find("title=\"values: 2.000\" style=\"width:50.00%;") != std::string::npos);
    CHECK(html.find("<em>0.150</em>") != std::string::npos);
}

TEST_CASE("self-contained, for narrow and dark screens, escaped") {
    const std::string html = eval::to_html(many_policies());
    for (const char* foreign : {"http:", "https:", "<script", "<link", "src=", "@import", "url("})
        CHECK(count(html, foreign) == 0);
    CHECK(html.find("name=\"viewport\"") != std::string::npos);
    CHECK(html.find("prefers-color-scheme:dark") != std::string::npos);
    CHECK(html.find("A &lt;title&gt; &amp; more") != std::string::npos);
    CHECK(html.find("nan") == std::string::npos);
    CHECK(html.find("inf") == std::string::npos);
    for (const char* tag :
         {"section", "table", "tr", "div", "svg", "figure", "details", "ul", "li", "p", "td"})
        CHECK(count(html, "<" + std::string(tag) + ">") + count(html, "<" + std::string(tag) + " ") ==
              count(html, "</" + std::string(tag) + ">"));
}

TEST_CASE("seventy styles differ") {
    std::set<std::string> all;
    for (std::size_t style = 0; style < 70; ++style) all.insert(eval::marker(style, 8, 8));
    CHECK(all.size() == 70);
}

TEST_CASE("a plot of nothing, of one point and of zeros stays finite") {
    const eval::axis x{"bytes", eval::axis_kind::bytes}, y{"nats", eval::axis_kind::logarithmic};
    for (const auto& points : std::vector<std::vector<eval::plot_point>>{
             {}, {{4096, 0.5, ""}}, {{0, 0, ""}}, {{0, 0, ""}, {4096, 1e-12, ""}, {1e12, 5, ""}}}) {
        const std::string svg = eval::plot(x, y, {{0, points}}, {});
        CHECK(svg.find("nan") == std::string::npos);
        CHECK(svg.find("inf") == std::string::npos);
        CHECK(count(svg, "<title>") == points.size());
    }
    CHECK(eval::plot(x, y, {{0, {{0, 1, ""}, {4096, 1, ""}}}}, {}).find(">0</text>") != std::string::npos);
}

TEST_CASE("units of bytes") {
    CHECK(eval::with_unit(0) == "0 B");
    CHECK(eval::with_unit(1536) == "1.5 KiB");
    CHECK(eval::with_unit(4096) == "4 KiB");
    CHECK(eval::with_unit(300.0 * 1024 * 1024) == "300 MiB");
}

TEST_CASE("no rows, and rows without figures") {
    CHECK(eval::to_html({"t", {}, {}}).find("There are no rows") != std::string::npos);
    eval::row bare;
    bare.policy = "quest";
    bare.task = "needle:gen";
    const std::string html = eval::to_html({"t", {}, {bare}});
    CHECK(count(html, "<tr><td>quest</td>") == 2);
    CHECK(html.find("spends its time") == std::string::npos);
}

} // namespace
