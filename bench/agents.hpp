// Agents with tool calls that share one engine, whose memory holds the sequences of some of them: who has to leave while its
// tool runs?
//
// Engine: one call at a time, in the order in which calls become ready. A call has the tokens that came since the agent's last
//         one (a task, the answer of a tool) and those that it generates. Its context is in memory, in a file, or has to be
//         read again; then come its own tokens. Behind the call the agent waits for a tool.
// Room:   memory_tokens for sequences in memory, file_tokens for files. Who leaves memory goes to a file if there is room.
// Order:  leaves_before() of the store (kvtl/store/victim_order.hpp) with the hints of a policy; Belady's has its own code.
// Source: KVFlow (steps to execution), Continuum (time to live), PTE (tokens computed again), abstracts; Belady 1966.
// Cost:   O(agents) for a victim, O(agents^2) for one with steps.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/store/victim_order.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <span>
#include <string_view>
#include <vector>

namespace bench {

struct agent_turn {
    std::uint32_t new_tokens = 0;
    std::uint32_t output_tokens = 0;
    std::uint32_t tool = 0; ///< its kind
    double tool_s = 0;      ///< until the next turn is ready
};
struct agent_job {
    double ready_s = 0; ///< of the first turn
    std::vector<agent_turn> turns{};
};

struct agent_costs {
    double prefill_tokens_per_s = 1, load_tokens_per_s = 1, decode_tokens_per_s = 1;
    std::uint64_t memory_tokens = 0, file_tokens = 0;
    double time_to_live = 0.9; ///< share of a tool's durations that a pin outlasts
};

enum class agent_policy : std::uint8_t {
    lru,
    time_to_live,    ///< pinned until a quantile of the tool's durations so far
    estimated_steps, ///< steps to execution, from the tool's mean duration so far
    steps,           ///< the same from the true durations
    belady,          ///< the farthest next use
};
inline constexpr std::string_view agent_policy_names[] = {"lru", "time_to_live", "estimated_steps", "steps",
                                                          "belady"};

struct agent_result {
    double mean_job_s = 0, longest_job_s = 0;
    std::uint64_t calls = 0, in_memory = 0; ///< those whose context was in memory; first turns have none
    std::uint64_t tokens_prefilled = 0, tokens_prefilled_again = 0, tokens_reloaded = 0;
    std::uint64_t tokens_written = 0;
    std::vector<std::uint32_t> order{}; ///< agents, call by call
    friend bool operator==(const agent_result&, const agent_result&) = default;
};

class agent_simulation {
  public:
    agent_simulation(std::span<const agent_job> jobs, const agent_costs& costs, agent_policy policy)
        : jobs_(jobs), costs_(costs), policy_(policy), agents_(jobs.size()) {
        for (std::size_t a = 0; a < jobs.size(); ++a) agents_[a].ready_s = expected_s(a, jobs[a].ready_s);
    }

    [[nodiscard]] agent_result run() {
        for (std::size_t a = next(); a != none; a = next()) call(a);
        for (std::size_t a = 0; a < agents_.size(); ++a) {
            const double took = agents_[a].ended_s - jobs_[a].ready_s;
            result_.mean_job_s += took / static_cast<double>(agents_.size());
            result_.longest_job_s = std::max(result_.longest_job_s, took);
        }
        return result_;
    }

  private:
    static constexpr std::size_t none = SIZE_MAX;
    static constexpr double never = std::numeric_limits<double>::infinity();
    enum class place : std::uint8_t { nowhere, memory, file };

    struct agent {
        std::size_t turn = 0;
        double ready_s = 0;    ///< when its next call is; never: it is done
        double expected_s = 0; ///< as a policy guesses it
        double ended_s = 0;
        std::uint64_t context = 0; ///< tokens
        place where = place::nowhere;
        kvtl::victim_rank rank{};
    };

    double expected_s(std::size_t a, double s) { return agents_[a].expected_s = s; }
    [[nodiscard]] std::size_t next() const {
        std::size_t first = none;
        for (std::size_t a = 0; a < agents_.size(); ++a)
            if (agents_[a].turn < jobs_[a].turns.size() &&
                (first == none || agents_[a].ready_s < agents_[first].ready_s))
                first = a;
        return first;
    }

    void call(std::size_t a) {
        agent& me = agents_[a];
        const agent_turn& turn = jobs_[a].turns[me.turn];
        result_.order.push_back(static_cast<std::uint32_t>(a));
        ++result_.calls;
        now_ = std::max(now_, me.ready_s);
        if (me.turn != 0) { // its tool has returned
            const agent_turn& last = jobs_[a].turns[me.turn - 1];
            durations_[last.tool].push_back(last.tool_s);
        }
        if (me.where == place::memory && me.context != 0) ++result_.in_memory;
        if (me.where == place::file) {
            now_ += static_cast<double>(me.context) / costs_.load_tokens_per_s;
            result_.tokens_reloaded += me.context;
        }
        if (me.where == place::nowhere) {
            now_ += static_cast<double>(me.context) / costs_.prefill_tokens_per_s;
            result_.tokens_prefilled_again += me.context;
        }
        me.context += turn.new_tokens + turn.output_tokens;
        me.where = place::memory; // its file is out of date
        make_room(place::memory, a);
        now_ +=
            turn.new_tokens / costs_.prefill_tokens_per_s + turn.output_tokens / costs_.decode_tokens_per_s;
        result_.tokens_prefilled += turn.new_tokens;
        me.ended_s = now_;
        me.rank.used = result_.calls;
        if (++me.turn == jobs_[a].turns.size()) { // nobody wants it any more
            me.ready_s = me.expected_s = never;
            me.where = place::nowhere;
            return;
        }
        me.ready_s = now_ + turn.tool_s;
        const auto& seen = durations_[turn.tool];
        expected_s(a, now_ + mean(seen));
        me.rank.hints.keep_until = policy_ == agent_policy::time_to_live ? clock(now_ + quantile(seen)) : 0;
    }

    /// Others leave until everything in memory, or in files, fits. `mine` stays.
    void make_room(place where, std::size_t mine) {
        const std::uint64_t room = where == place::memory ? costs_.memory_tokens : costs_.file_tokens;
        for (;;) {
            std::uint64_t used = 0;
            for (const agent& a : agents_) used += a.where == where ? a.context : 0;
            const std::size_t leaves = used > room ? victim(where, mine) : none;
            if (leaves == none) return;
            agent& v = agents_[leaves];
            v.where = place::nowhere;
            if (where == place::file || v.context > costs_.file_tokens) continue;
            v.where = place::file;
            result_.tokens_written += v.context;
            make_room(place::file, leaves);
        }
    }
    [[nodiscard]] std::size_t victim(place where, std::size_t mine) {
        std::size_t first = none;
        for (std::size_t a = 0; a < agents_.size(); ++a) {
            if (a == mine || agents_[a].where != where) continue;
            if (policy_ == agent_policy::steps) agents_[a].rank.hints.steps = steps(a, &agent::ready_s);
            if (policy_ == agent_policy::estimated_steps)
                agents_[a].rank.hints.steps = steps(a, &agent::expected_s);
            if (first == none) {
                first = a;
            } else if (policy_ == agent_policy::belady) {
                if (agents_[a].ready_s >= agents_[first].ready_s)
                    first = a; // of two at a time the first one runs
            } else if (kvtl::leaves_before(agents_[a].rank, agents_[first].rank, clock(now_))) {
                first = a;
            }
        }
        return first;
    }
    /// Calls of others that come before its next one, as far as they are known.
    [[nodiscard]] std::uint64_t steps(std::size_t a, double agent::*when) const {
        std::uint64_t n = 0;
        for (std::size_t b = 0; b < agents_.size(); ++b)
            n += agents_[b].*when < agents_[a].*when || (agents_[b].*when == agents_[a].*when && b < a) ? 1
                                                                                                        : 0;
        return n;
    }

    [[nodiscard]] static double mean(const std::vector<double>& seen) {
        double sum = 0;
        for (const double s : seen) sum += s;
        return seen.empty() ? 0 : sum / static_cast<double>(seen.size());
    }
    [[nodiscard]] double quantile(std::vector<double> seen) const {
        if (seen.empty()) return 0;
        const auto at = static_cast<std::size_t>(costs_.time_to_live * static_cast<double>(seen.size() - 1));
        std::nth_element(seen.begin(), seen.begin() + static_cast<std::ptrdiff_t>(at), seen.end());
        return seen[at];
    }
    [[nodiscard]] static std::uint64_t clock(double s) { return static_cast<std::uint64_t>(s * 1e6) + 1; }

    std::span<const agent_job> jobs_;
    agent_costs costs_;
    agent_policy policy_;
    std::vector<agent> agents_;
    std::map<std::uint32_t, std::vector<double>> durations_; ///< of each kind of tool
    double now_ = 0;
    agent_result result_;
};

/// 8 to 10 agents with 6 to 14 calls each. Three kinds of tools, whose durations are log-normal with medians of 0.3, 2 and 10
/// seconds and a deviation of 0.6 of the logarithm. Tasks of 300 to 900 tokens, answers of 30 to 300, outputs of 20 to 120.
[[nodiscard]] inline std::vector<agent_job> made_up_agents(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto between = [&](std::uint32_t least, std::uint32_t most) {
        return static_cast<std::uint32_t>(least + random() % (most - least + 1));
    };
    std::normal_distribution<double> normal;
    std::vector<agent_job> jobs(between(8, 10));
    for (std::size_t a = 0; a < jobs.size(); ++a) {
        jobs[a].ready_s = 0.5 * static_cast<double>(a);
        jobs[a].turns.resize(between(6, 14));
        for (std::size_t t = 0; t < jobs[a].turns.size(); ++t) {
            constexpr double medians[] = {0.3, 2, 10};
            const std::uint32_t tool = between(0, 2);
            jobs[a].turns[t] = {.new_tokens = t == 0 ? between(300, 900) : between(30, 300),
                                .output_tokens = between(20, 120),
                                .tool = tool,
                                .tool_s = medians[tool] * std::exp(0.6 * normal(random))};
        }
    }
    return jobs;
}

} // namespace bench
