// The part of a shard that drops entries: checks, and the ways of a prompt and of a decode step.
//
// What is kept stays here, in rows in memory; or, where it moves on to units or to chains of records, a prompt is
// only held until it is settled, and visit() shows what is to move.
//
// Every call checks that the rows it may need are there before it changes anything; after that nothing can
// fail.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/calibration/calibration.hpp>
#include <kvtl/core/plan/size_rows.hpp>
#include <kvtl/core/step/decode_eviction.hpp>
#include <kvtl/core/step/prompt_eviction.hpp>
#include <kvtl/save/part_stream.hpp>

#include <algorithm>
#include <numeric>
#include <type_traits>
#include <utility>

namespace kvtl { inline namespace v0 {

template <class Types> class retention_stage {
  public:
    using book = eviction_state<Types>;
    using E = typename book::E;
    using score = typename Types::score;
    using pool_type = typename book::pool_type;
    using kept = typename book::rows;
    static constexpr bool reads_mass = Types::reads_mass;

    /// `blocks`: the memory of the shard's rows; the rest is carved from `fixed`.
    template <class Config>
    [[gnu::cold]] void init(const Config& c, const row_sizes<Types>& sizes, const layer_numbers& numbers,
                            std::uint32_t index, carver& fixed, std::span<std::byte> blocks) noexcept {
        const retention_plan& p = sizes.plan;
        const auto m =
            retention_memory<Types>::take(p, c.retention, sizes.scores, sizes.budgets, fixed, fixed, fixed);
        book_.plan = p, book_.plan.numbers = numbers, book_.index = index, book_.memory = m;
        if (c.time_phases) clock_ = phase_clock(book_.stats.phase_ns), book_.clock = &clock_;
        book_.score = typename Types::score_state(c.retention, sizes.scores, m.score);
        book_.budget = typename Types::budget_state(c.budget, sizes.budgets, m.budget);
        book_.position = typename Types::position_state(c.position, p.dim, m.position);
        book_.codec = row_codec_of<Types>(c.compressor, p.dim);
        book_.pool = pool_type(blocks, m.links, p.record);
        if constexpr (Types::demotes) {
            book_.demoted_codec = Types::demoted_codec_of(p.dim);
            book_.demoted_format =
                pool_type::format_within(book_.demoted_codec.bytes(), book_.pool.block_bytes());
        }
        std::fill(m.balance.begin(), m.balance.end(), 1.0F);
        for (kept_lane& lane : m.lanes) lane.limit = p.keep;
        prompt_ = prompt_eviction<Types>(book_);
        decode_ = decode_eviction<Types>(book_);
    }

    /// Hands the score what was fitted offline. The view's memory outlives the stage.
    [[gnu::cold]] void bind(const calibration_view& calibration) noexcept { book_.score.bind(calibration); }

    /// A call is prepared when the rows that it may need are there.
    [[nodiscard]] status prefill(call_half h, std::uint32_t slot, std::uint32_t layer, const layer_input& in,
                                 std::uint32_t tokens, const tensor_span& out, bool = true) noexcept {
        const std::span<kept_lane> lanes = book_.lanes_of(slot, layer);
        if (lanes.empty() || h == call_half::undo) return {};
        if constexpr (!Types::hands_over)
            if (lanes[0].tokens > 0 && !lanes[0].prompt_open) return turn(h, slot, layer, in, tokens, out);
        const std::uint32_t before = lanes[0].tokens;
        if (h == call_half::prepare)
            if (status s = check_prompt(slot, layer, in, tokens); !s) return s;
        if constexpr (Types::evicts_by_chunk)
            return prompt_.complete(h, slot, layer, in, lanes[0].rows.rows, tokens - in.passing, out);
        else if constexpr (score::evicts_in_prompt)
            return stream(h, slot, layer, in, tokens, out);
        const std::uint32_t stay = Types::replays ? tokens - in.passing : tokens;
        if (!in.last_chunk) return prompt_.add_chunk(h, slot, layer, in, before, stay, out);
        return prompt_.complete(h, slot, layer, in, before, stay, out);
    }

    /// The attention of prefill(). Nothing stays.
    [[nodiscard]] status attend_only(call_half h, std::uint32_t slot, std::uint32_t layer,
                                     const layer_input& in, std::uint32_t tokens,
                                     const tensor_span& out) noexcept {
        const std::span<kept_lane> lanes = book_.lanes_of(slot, layer);
        if (lanes.empty() || h == call_half::undo) return {};
        layer_input turn = in;
        turn.lse = {}; // of attend() alone
        if (lanes[0].tokens > 0 && !lanes[0].prompt_open)
            return attend_passing(h, "prefill", slot, layer, turn, tokens, out);
        if (h == call_half::prepare) return check_length(lanes, tokens);
        prompt_.attend_chunk(slot, layer, in, tokens, out);
        return {};
    }

    /// The prompt of a layer is complete, so that a token may come.
    [[nodiscard]] status ready(const char* call, std::uint32_t slot, std::uint32_t layer) const noexcept {
        const auto lanes = book_.lanes_of(slot, layer);
        if (lanes.empty()) return {};
        if (lanes[0].prompt_open)
            return status::failure(errc::invalid_argument,
                                   "%s: the prompt is not complete: %u tokens wait for a prefill with "
                                   "last_chunk = true",
                                   call, lanes[0].tokens);
        const std::uint32_t seen = book_.sequence_budget_of(slot).layers_seen;
        if (Types::budget::late && seen > 0 && seen < book_.plan.layers)
            return status::failure(errc::invalid_argument,
                                   "%s: the prompt of layer %u is still to come; budgets are not settled",
                                   call, book_.plan.numbers.of(seen));
        return {};
    }

    [[nodiscard]] status attend(call_half h, std::uint32_t slot, std::uint32_t layer, const layer_input& in,
                                std::uint32_t tokens, const tensor_span& out, bool stays) noexcept {
        if (book_.lanes_of(slot, layer).empty() || h == call_half::undo) return {};
        if (h == call_half::prepare)
            if (status s = ready("attend", slot, layer); !s) return s;
        if (!stays) {
            if (status s = attend_passing(h, "attend", slot, layer, in, tokens, out); !s) return s;
            if (h == call_half::commit) book_.stats.steps += tokens;
            return {};
        }
        if (h == call_half::prepare) return check_step("attend", slot, layer, in, tokens);
        for (std::uint32_t t = 0; t < tokens; ++t) decode_.step(slot, layer, in, t, out);
        book_.stats.steps += tokens;
        return {};
    }

    [[nodiscard]] status append(call_half h, std::uint32_t slot, std::uint32_t layer,
                                const layer_input& in) noexcept {
        if (book_.lanes_of(slot, layer).empty() || h == call_half::undo) return {};
        if (h == call_half::prepare) {
            if (status s = ready("append", slot, layer); !s) return s;
            return check_step("append", slot, layer, in, 1);
        }
        decode_.step(slot, layer, in, 0, {});
        return {};
    }

    /// visit(kv head, keys, values) for every piece of rows that a layer holds. Rows that are no records are
    /// decoded for the visit and last as long as it does.
    template <class Visit> void views(std::uint32_t slot, std::uint32_t layer, Visit&& visit) noexcept {
        const std::span<kept_lane> lanes = book_.lanes_of(slot, layer);
        const std::size_t dim = book_.plan.dim;
        for (std::uint32_t i = 0; i < lanes.size(); ++i) {
            const kept held = book_.open(lanes[i]);
            held.pieces(
                0, held.size(),
                [&](std::uint32_t, const records_view& keys, const records_view& values, const float*) {
                    book_.memory.shown.show(
                        book_.codec, keys, values, [&](std::size_t, const E* k, const E* v, std::size_t n) {
                            visit(std::size_t{book_.head_of(i)}, rows_view<E>{k, n, dim, dim},
                                  rows_view<E>{v, n, dim, dim});
                        });
                });
        }
    }

    // ------------------------------------------------------------------------ prompts that move on
    /// A prompt of this layer is here: unfinished, or settled and about to move.
    [[nodiscard]] bool holds(std::uint32_t slot, std::uint32_t layer) const noexcept {
        const auto lanes = book_.lanes_of(slot, layer);
        return !lanes.empty() && lanes[0].tokens > 0;
    }
    /// Its last chunk is to come.
    [[nodiscard]] bool prompt_open(std::uint32_t slot, std::uint32_t layer) const noexcept {
        return book_.lanes_of(slot, layer)[0].prompt_open;
    }
    /// No later layer can change what the layers seen so far keep.
    [[nodiscard]] bool settled(std::uint32_t slot) const noexcept {
        return !Types::budget::late || layers_seen(slot) == book_.plan.layers;
    }
    /// Layers whose prompt is complete.
    [[nodiscard]] std::uint32_t layers_seen(std::uint32_t slot) const noexcept {
        return book_.owns(slot) ? book_.sequence_budget_of(slot).layers_seen : 0;
    }
    /// All layers have moved: the next prompt finds budgets as the first one did.
    void begin_anew(std::uint32_t slot) noexcept { book_.sequence_budget_of(slot) = {}; }
    /// Rows of the shard's lane i of units or records, which are as many in each of its heads.
    [[nodiscard]] std::uint32_t rows(std::uint32_t slot, std::uint32_t layer,
                                     std::uint32_t i) const noexcept {
        return book_.lanes_of(slot, layer)[i * lane_heads()].rows.rows;
    }
    /// f(row - begin, head of the lane, key (D), value (D), {position, log-weight}) for the rows [begin, end) of
    /// lane i, in the order of their tokens.
    template <class F>
    void visit(std::uint32_t slot, std::uint32_t layer, std::uint32_t i, std::uint32_t begin,
               std::uint32_t end, F&& f) noexcept {
        for (std::uint32_t h = 0; h < lane_heads(); ++h) {
            const kept held = book_.open(book_.lanes_of(slot, layer)[i * lane_heads() + h]);
            const std::span<std::uint32_t> order = book_.memory.order.first(held.size());
            std::iota(order.begin(), order.end(), 0U);
            const auto earlier = [&](std::uint32_t a, std::uint32_t b) {
                return held.token(a) < held.token(b);
            };
            if (!std::is_sorted(order.begin(), order.end(), earlier)) // late budgets keep rows by score
                std::sort(order.begin(), order.end(), earlier);
            for (std::uint32_t row = begin; row < end; ++row)
                f(row - begin, h, reinterpret_cast<const E*>(held.key(order[row])),
                  reinterpret_cast<const E*>(held.value(order[row])),
                  entry_facts{held.token(order[row]), held.log_weight(order[row])});
        }
    }

    [[nodiscard]] status check_rewind(std::uint32_t slot, std::uint32_t layer, std::uint32_t n,
                                      const rewind_argument& asked) noexcept {
        for (kept_lane& lane : book_.lanes_of(slot, layer)) {
            if (lane.prompt_open)
                return status::failure(errc::invalid_argument, "%s: the prompt is not complete", asked.call);
            std::uint32_t found = 0;
            book_.each_chain(lane, [&](const auto& held, std::uint32_t) {
                for (std::uint32_t i = 0; i < held.size(); ++i)
                    found += held.token(i) + std::uint64_t{n} >= lane.tokens ? 1U : 0U;
            });
            if (n > lane.tokens || found < n)
                return status::failure(
                    errc::out_of_range, "%s: %s is %zu; of the last %u tokens of %u only %u are still held",
                    asked.call, asked.name, asked.value, std::min(n, lane.tokens), lane.tokens, found);
        }
        return {};
    }
    /// What was dropped in favour of the tokens that go now stays dropped.
    void rewind(std::uint32_t slot, std::uint32_t layer, std::uint32_t n) noexcept {
        for (kept_lane& lane : book_.lanes_of(slot, layer)) {
            lane.tokens -= n;
            book_.each_chain(lane, [&](const auto& held, std::uint32_t) {
                for (std::uint32_t i = held.size(); i-- > 0;)
                    if (held.token(i) >= lane.tokens) held.remove(i);
            });
        }
        book_.recount(slot);
        if (tokens(slot, layer) != 0) return;
        forget(slot, layer); // a prompt may come again
        book_.sequence_budget_of(slot).layers_seen = 0;
    }

    void end(std::uint32_t slot) noexcept {
        for (std::uint32_t l = 0; l < book_.plan.layers; ++l) forget(slot, l);
        book_.sequence_budget_of(slot) = {};
    }
    /// One layer of a sequence is empty again; others do not notice unless budgets compare layers.
    void forget(std::uint32_t slot, std::uint32_t layer) noexcept {
        const std::span<kept_lane> lanes = book_.lanes_of(slot, layer);
        const std::uint32_t had = book::count_blocks(lanes);
        for (kept_lane& lane : lanes) {
            book_.pool.release(lane.rows);
            book_.pool.release(lane.demoted);
            book_.pool.release(lane.queries);
            lane = {};
            lane.limit = book_.plan.keep;
            const std::span<float> factor = book_.balance_of(lane);
            std::fill(factor.begin(), factor.end(), 1.0F);
        }
        book_.recount(slot, lanes, had);
    }

    /// What the lanes of a KV head are, to or from a stream (core/save/sequence_parts.hpp). The prompt is complete.
    void parts(part_stream& io, std::uint32_t slot, std::uint32_t layer, std::uint32_t head) noexcept {
        const std::span<kept_lane> lanes = book_.lanes_of(slot, layer);
        for (std::uint32_t i = 0; i < lanes.size(); ++i)
            if (book_.head_of(i) == head) lane_parts(io, slot, lanes[i]);
    }

    /// A branch begins: what belongs to all of its layers, but for the blocks that it has.
    void begin_branch(std::uint32_t parent, std::uint32_t to) noexcept {
        const sequence_budget& of = book_.sequence_budget_of(parent);
        sequence_budget& own = book_.sequence_budget_of(to);
        own.layers_seen = of.layers_seen, own.competing = of.competing, own.pinned = of.pinned;
    }
    /// A branch will copy this layer. It gets the blocks for the rows at once; or, after an error, none.
    [[nodiscard]] status promise_copy(std::uint32_t from, std::uint32_t to, std::uint32_t layer) noexcept {
        const std::span<kept_lane> parents = book_.lanes_of(from, layer), lanes = book_.lanes_of(to, layer);
        if (lanes.empty()) return {};
        if (status s = book_.reserve(to, book::count_blocks(parents), "fork", book::rows_for::chunk); !s)
            return s;
        for (std::uint32_t i = 0; i < lanes.size(); ++i) {
            while (lanes[i].rows.blocks < parents[i].rows.blocks) book_.pool.extend(lanes[i].rows);
            while (lanes[i].demoted.blocks < parents[i].demoted.blocks) book_.pool.extend(lanes[i].demoted);
        }
        book_.recount(to, lanes, 0);
        return {};
    }
    /// The layer of a branch, which has nothing but blocks, becomes what its parent's is.
    status copy_layer(std::uint32_t from, std::uint32_t to, std::uint32_t layer) noexcept {
        const std::span<kept_lane> parents = book_.lanes_of(from, layer), lanes = book_.lanes_of(to, layer);
        for (std::uint32_t i = 0; i < lanes.size(); ++i) {
            block_chain rows = lanes[i].rows, demoted = lanes[i].demoted;
            book_.pool.copy(parents[i].rows, rows);
            book_.pool.copy(parents[i].demoted, demoted);
            lanes[i] = parents[i];
            lanes[i].rows = rows, lanes[i].demoted = demoted;
            std::ranges::copy(book_.balance_of(parents[i]), book_.balance_of(lanes[i]).begin());
            std::ranges::copy(book_.past_of(parents[i], lanes[i].tokens), book_.past_of(lanes[i], 0).data());
        }
        return {};
    }

    [[nodiscard]] std::uint32_t tokens(std::uint32_t slot, std::uint32_t layer) const noexcept {
        const auto lanes = book_.lanes_of(slot, layer);
        return lanes.empty() ? none : lanes[0].tokens;
    }
    /// Of all heads of a layer.
    [[nodiscard]] std::size_t kept_entries(std::uint32_t slot, std::uint32_t layer) const noexcept {
        std::size_t entries = 0;
        for (const kept_lane& lane : book_.lanes_of(slot, layer)) entries += book::entries(lane);
        return entries;
    }
    [[nodiscard]] const statistics& counted() const noexcept { return book_.stats; }
    [[nodiscard]] statistics stats() const noexcept {
        statistics s = book_.stats;
        s.resident_bytes_peak = std::uint64_t{book_.pool.used_peak()} * book_.pool.block_bytes();
        for (const kept_lane& lane : book_.memory.lanes) {
            s.kept_entries += book::entries(lane);
            s.kept_bytes += book_.record_bytes_of(lane);
        }
        return s;
    }
    /// Adds what a layer holds now.
    void add_held(statistics& s, std::uint32_t slot, std::uint32_t layer) const noexcept {
        s.kept_entries += kept_entries(slot, layer);
        for (const kept_lane& lane : book_.lanes_of(slot, layer)) s.kept_bytes += book_.record_bytes_of(lane);
    }

    // ---------------------------------------------------------------------------------------- for tests
    [[nodiscard]] std::span<kept_lane> lanes_of(std::uint32_t slot, std::uint32_t layer) const noexcept {
        return book_.lanes_of(slot, layer);
    }
    [[nodiscard]] kept open(kept_lane& lane) noexcept { return book_.open(lane); }
    [[nodiscard]] auto open_demoted(kept_lane& lane) noexcept { return book_.open_demoted(lane); }
    [[nodiscard]] const pool_type& pool() const noexcept { return book_.pool; }
    [[nodiscard]] const retention_plan& plan() const noexcept { return book_.plan; }

  private:
    void lane_parts(part_stream& io, std::uint32_t slot, kept_lane& lane) noexcept {
        sequence_budget& sequence = book_.sequence_budget_of(slot);
        io.count(sequence.layers_seen, book_.plan.layers, "layers with a prompt");
        io.value(sequence.competing);
        io.value(sequence.pinned);
        io.count(lane.tokens, book_.plan.max_tokens, "tokens");
        io.value(lane.limit);
        io.value(lane.merge_bar);
        if (Types::balances_channels) io.array(book_.balance_of(lane).data(), book_.plan.dim);
        const std::span<std::byte> past = book_.past_of(lane, lane.tokens);
        io.bytes(past.data(), past.size());
        book_.each_chain(lane, [&](const auto& held, std::uint32_t) { chain_parts(io, slot, lane, held); });
    }
    template <class Rows>
    void chain_parts(part_stream& io, std::uint32_t slot, kept_lane& lane, const Rows& held) noexcept {
        std::uint32_t rows = held.size();
        const std::uint32_t others = book::entries(lane) - rows; // those of the other chain
        io.count(rows, book_.plan.most_rows - std::min(book_.plan.most_rows, others), "rows of a lane");
        if (io.loads() && rows > 0) {
            if (status s =
                    book_.reserve(slot, blocks_for(rows, held.per_block()), io.call(), book::rows_for::chunk);
                !s)
                return io.fail(std::move(s));
            const std::uint32_t before = book::count_blocks({&lane, 1});
            while (held.size() < rows) held.push(0);
            book_.recount(slot, {&lane, 1}, before);
        }
        for (std::uint32_t i = 0; i < rows; ++i) {
            io.bytes(held.key_record(i), held.format().most.key);
            io.bytes(held.value_record(i), held.format().most.value);
            io.value(held.token(i));
        }
        for (std::uint32_t i = 0; i < rows; ++i) { // which may change at every step
            io.value(held.score(i));
            io.value(held.log_weight(i));
            if constexpr (!std::is_empty_v<typename score::record>) io.value(held.record(i));
        }
    }
    /// KV heads of a lane of units or records.
    [[nodiscard]] std::uint32_t lane_heads() const noexcept {
        return Types::unit_of == granularity::layer ? book_.plan.kv_heads : 1;
    }
    /// A chunk of a prompt has room beside what is held of it.
    [[nodiscard]] status check_length(std::span<const kept_lane> lanes, std::uint32_t tokens) const noexcept {
        std::uint32_t held = 0;
        for (const kept_lane& lane : lanes)
            held = std::max(held, score::evicts_in_prompt ? lane.rows.rows : lane.tokens);
        if (held + std::uint64_t{tokens} <= book_.plan.prefill_tokens) return {};
        if (score::evicts_in_prompt)
            return status::failure(errc::out_of_range,
                                   "prefill: the chunk has %u tokens beside %u that were kept; valid: up "
                                   "to prefill_tokens = %u together",
                                   tokens, held, book_.plan.prefill_tokens);
        return status::failure(errc::out_of_range,
                               "prefill: the prompt has %u tokens; valid: up to prefill_tokens = %u",
                               held + tokens, book_.plan.prefill_tokens);
    }
    /// T further tokens attend what is held and each other, one after the other. Nothing stays, and nothing is evicted.
    [[nodiscard]] status attend_passing(call_half h, const char* call, std::uint32_t slot,
                                        std::uint32_t layer, const layer_input& in, std::uint32_t tokens,
                                        const tensor_span& out) noexcept {
        const std::span<kept_lane> lanes = book_.lanes_of(slot, layer);
        if (h == call_half::prepare) {
            std::uint32_t most = 0, more = 0;
            for (const kept_lane& lane : lanes) {
                most = std::max(most, book::entries(lane));
                const std::uint32_t blocks = blocks_for(std::size_t{lane.rows.rows} + tokens);
                more += blocks - std::min(blocks, lane.rows.blocks);
            }
            if (most + std::uint64_t{tokens} > book_.plan.most_rows)
                return status::failure(
                    errc::out_of_range,
                    "%s: k has %u tokens, in a layer that shares its cache; valid: 1 to %u beside "
                    "the %u entries that are held",
                    call, tokens, book_.plan.most_rows - most, most);
            return book_.reserve(slot, more, call, book::rows_for::decode);
        }
        for (std::uint32_t t = 0; t < tokens; ++t) decode_.step(slot, layer, in, t, out, false);
        const std::uint32_t had = book::count_blocks(lanes);
        for (kept_lane& lane : lanes) {
            const kept held = book_.open(lane);
            held.truncate(held.size() - tokens);
            lane.tokens -= tokens;
        }
        book_.recount(slot, lanes, had);
        return {};
    }
    [[nodiscard]] status check_prompt(std::uint32_t slot, std::uint32_t layer, const layer_input& in,
                                      std::uint32_t tokens) const noexcept {
        const std::span<kept_lane> lanes = book_.lanes_of(slot, layer);
        if (status s = check_length(lanes, tokens); !s) return s;
        constexpr bool queries = score::source == score_source::window ||
                                 score::source == score_source::prompt || Types::balances_channels;
        if (queries && in.q.empty())
            return status::failure(errc::invalid_argument,
                                   "prefill: q is empty; valid: the chunk's queries, retention %s reads them",
                                   Types::retention::name.data());
        if constexpr (score::source == score_source::probe) {
            if ((in.last_chunk || Types::evicts_by_chunk || (Types::replays && !in.probe.empty())) &&
                (in.probe.empty() || in.probe.size() % book_.plan.query_floats() != 0))
                return status::failure(errc::invalid_argument,
                                       "prefill: probe has %zu numbers; valid: a positive multiple of "
                                       "query_heads * head_dim = %zu",
                                       in.probe.size(), book_.plan.query_floats());
            if (!simd::all_finite(in.probe.data(), in.probe.size()))
                return status::failure(errc::invalid_argument,
                                       "prefill: probe holds a number that is not finite");
            if (Types::replays && in.passing != 0 &&
                in.probe.size() != in.passing * book_.plan.query_floats())
                return status::failure(errc::invalid_argument,
                                       "prefill: probe has %zu numbers and passing is %u; valid: passing "
                                       "* query_heads * head_dim = %zu, the queries of what passes",
                                       in.probe.size(), in.passing, in.passing * book_.plan.query_floats());
            if (Types::replays && lanes[0].tokens + tokens == in.passing)
                return status::failure(errc::invalid_argument,
                                       "prefill: all %u tokens pass, and no token came before them; "
                                       "valid: a replay behind the prompt that it repeats",
                                       tokens);
        }
        if (status s = check_arrivals("prefill", in, in.k.size() / book_.plan.key_floats()); !s) return s;
        if (score::drops_unwanted && in.last_chunk && !lanes[0].wanted && !book_.score.wants_any(in))
            return status::failure(errc::invalid_argument,
                                   "prefill: external keeps nothing of %u tokens; valid: at least one number "
                                   "> 0 in the prompt",
                                   lanes[0].tokens + tokens);
        if (Types::budget::late && in.last_chunk && book_.sequence_budget_of(slot).layers_seen != layer)
            return status::failure(errc::invalid_argument,
                                   "prefill: layer is %u; valid: %u, as budget %s divides layers in order",
                                   book_.plan.numbers.of(layer),
                                   book_.plan.numbers.of(book_.sequence_budget_of(slot).layers_seen),
                                   Types::budget::name.data());
        return {};
    }
    [[nodiscard]] status check_arrivals(const char* call, const layer_input& in,
                                        std::size_t tokens) const noexcept {
        if (contains(needs_of<score>(), engine_input::external) &&
            in.external.size() != tokens * book_.plan.kv_heads)
            return status::failure(errc::invalid_argument,
                                   "%s: external has %zu numbers; valid: tokens * kv_heads = %zu", call,
                                   in.external.size(), tokens * book_.plan.kv_heads);
        return book_.score.check_arrival(in, tokens);
    }
    /// Tokens that take the way of decode have what they bring with them, and the rows that they need are there.
    [[nodiscard]] status check_step(const char* call, std::uint32_t slot, std::uint32_t layer,
                                    const layer_input& in, std::uint32_t tokens) const noexcept {
        if (status s = check_arrivals(call, in, tokens); !s) return s;
        return book_.reserve(slot, book_.growth(slot, layer, tokens), call, book::rows_for::decode);
    }
    /// A prompt that is never held as a whole. Its queries pay for what is held when their turn comes; its
    /// output is that of the whole chunk.
    [[nodiscard]] status stream(call_half h, std::uint32_t slot, std::uint32_t layer, const layer_input& in,
                                std::uint32_t tokens, const tensor_span& out) noexcept {
        const std::span<kept_lane> lanes = book_.lanes_of(slot, layer);
        for (kept_lane& lane : lanes)
            lane.limit = book_.plan.sinks + book_.plan.window + book_.budget.provisional(layer, none);
        if (h == call_half::prepare)
            return book_.reserve(slot, book_.growth(slot, layer, tokens), "prefill", book::rows_for::decode);
        prompt_.attend_chunk(slot, layer, in, tokens, out);
        layer_input steps = in;
        steps.lse = {}; // of attend() alone
        const phase_clock::span timed(book_.clock, &phase_times::evict);
        phase_clock* const clock =
            std::exchange(book_.clock, nullptr); // steps are of this phase, whatever they do
        for (std::uint32_t t = 0; t < tokens; ++t) decode_.step(slot, layer, steps, t, {});
        book_.clock = clock;
        for (kept_lane& lane : lanes) lane.prompt_open = !in.last_chunk;
        return {};
    }

    [[nodiscard]] status turn(call_half h, std::uint32_t slot, std::uint32_t layer, const layer_input& in,
                              std::uint32_t tokens, const tensor_span& out) noexcept {
        if (h == call_half::prepare) {
            if (status s = ready("prefill", slot, layer); !s) return s;
            if (in.passing != 0)
                return status::failure(errc::invalid_argument,
                                       "prefill: passing is %u; valid: 0 behind a prompt that is complete",
                                       in.passing);
            if (reads_mass && in.q.empty())
                return status::failure(errc::invalid_argument,
                                       "prefill: q is empty; valid: the turn's queries");
            return check_step("prefill", slot, layer, in, tokens);
        }
        layer_input turn_input = in;
        turn_input.lse = {}; // of attend() alone
        for (std::uint32_t t = 0; t < tokens; ++t) decode_.step(slot, layer, turn_input, t, out);
        return {};
    }

    book book_{};
    phase_clock clock_;
    prompt_eviction<Types> prompt_;
    decode_eviction<Types> decode_;
};

}} // namespace kvtl::v0
