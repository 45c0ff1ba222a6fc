// SPDX-License-Identifier: MIT
#include "answering.hpp"

#include "error.hpp"
#include "sampler.hpp"

#include <algorithm>
#include <chrono>
#include <optional>

namespace llama_run {

namespace {

/// A sequence of the session and what it is busy with.
struct place {
    bool busy = false;
    std::size_t prompt = 0;
    std::size_t read = 0; ///< tokens of the prompt
    std::optional<engine::sampler> choice;
    std::optional<token_id> next;     ///< chosen, not decoded yet
    std::optional<std::size_t> asked; ///< which token of the batch has its logits
};

class round {
  public:
    round(session& s, std::span<const std::vector<token_id>> prompts, const answering& how,
          const answering_events& events)
        : session_(s), prompts_(prompts), how_(how), events_(events), places_(how.at_once),
          batch_(s.batch()) {
        result_.each.resize(prompts.size());
        for (std::size_t i = 0; i < prompts.size(); ++i) {
            result_.each[i].prompt_tokens = prompts[i].size();
            to_read_ += prompts[i].size();
        }
    }

    answers run() {
        while (fill()) {
            if (reading_ == counting_) count();
            const auto start = std::chrono::steady_clock::now();
            session_.decode(batch_);
            const double took =
                std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
            if (reading_) {
                result_.read_s += took;
            } else {
                result_.generate_s += took;
                result_.steps += batch_.size();
            }
            if (reading_ && events_.read) events_.read(read_, to_read_);
            for (unsigned i = 0; i < places_.size(); ++i)
                if (places_[i].asked) take(i, session_.logits(*places_[i].asked));
        }
        if (counting_) count();
        return std::move(result_);
    }

  private:
    /// Begins or ends counting what the cache reads.
    void count() {
        const engine::cache_stats now = session_.stats();
        counting_ = !counting_;
        const auto turn = [&](std::uint64_t& sum, std::uint64_t value) { sum += counting_ ? -value : value; };
        turn(result_.read_bytes, now.read_bytes);
        turn(result_.reads, now.reads);
    }

    /// The next batch; false where nothing is left to do.
    bool fill() {
        batch_.clear();
        reading_ = false;
        for (place& p : places_) {
            p.asked.reset();
            if (p.busy || next_prompt_ == prompts_.size()) continue;
            p = {};
            p.busy = true;
            p.prompt = next_prompt_++;
            p.choice.emplace(how_.generate.temperature, how_.generate.seed);
            if (how_.from) {
                if (!p.choice->go_on_from(how_.from->sampler))
                    throw engine::bad_input("--load-state: the sampler's state cannot be read");
                if (prompts_[p.prompt].empty()) p.next = how_.from->unread.back();
            }
        }
        // Who is answering comes first: room for them is always there, as a batch has more tokens than there are places.
        for (const bool answering : {true, false})
            for (std::size_t k = 0; k < places_.size(); ++k) {
                const auto i = static_cast<unsigned>((turn_ + k) % places_.size());
                place& p = places_[i];
                if (!p.busy || p.next.has_value() != answering) continue;
                if (session_.one_sequence_per_batch() && batch_.size() > 0) continue;
                if (answering) {
                    p.asked = batch_.size();
                    batch_.add(*p.next, session_.held(i), i, true);
                    p.next.reset();
                } else {
                    read(i);
                }
            }
        ++turn_;
        return batch_.size() > 0;
    }

    void read(unsigned i) {
        place& p = places_[i];
        const auto& prompt = prompts_[p.prompt];
        const std::size_t left = prompt.size() - p.read;
        const std::size_t n = std::min(left, batch_.room());
        const std::size_t held = session_.held(i); // what came before a prompt that goes on, too
        if (n == 0 || (how_.whole_prompts && n < left && batch_.size() > 0)) return;
        for (std::size_t t = 0; t < n; ++t) {
            const bool last = p.read + t + 1 == prompt.size();
            if (last) p.asked = batch_.size();
            batch_.add(prompt[p.read + t], held + t, i, last);
        }
        p.read += n;
        read_ += n;
        reading_ = true;
    }

    void take(unsigned i, std::span<const float> logits) {
        place& p = places_[i];
        engine::answer& a = result_.each[p.prompt];
        const std::size_t most = how_.generate.predict;
        if (a.tokens.size() < most) {
            const token_id id = p.choice->choose(logits);
            if (how_.generate.ignore_end || !session_.model().is_end(id)) {
                a.tokens.push_back(id);
                a.text += session_.model().piece(id);
                if (how_.generate.top_logits != 0 && p.prompt == 0)
                    result_.logits.push_back(engine::highest(logits, how_.generate.top_logits));
                if (events_.generated) events_.generated(p.prompt, id);
                if (a.tokens.size() < most) {
                    p.next = id;
                    return;
                }
            }
        }
        if (events_.finished) events_.finished(i, a, *p.choice);
        session_.end(i);
        p.busy = false;
        if (events_.answered) events_.answered(p.prompt);
    }

    session& session_;
    std::span<const std::vector<token_id>> prompts_;
    const answering& how_;
    const answering_events& events_;
    std::vector<place> places_;
    token_batch batch_;
    answers result_;
    std::size_t next_prompt_ = 0, read_ = 0, to_read_ = 0, turn_ = 0;
    bool reading_ = false, counting_ = false;
};

} // namespace

answers answer(session& s, std::span<const std::vector<token_id>> prompts, const answering& how,
               const answering_events& events) {
    return round(s, prompts, how, events).run();
}

} // namespace llama_run
