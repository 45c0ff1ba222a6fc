// A shard as its manager calls it, whatever the preset: a shard's own part is behind virtual functions.
//
// What:   shard.hpp has the stages of a preset. Here is what needs none of them: branches and what has been counted for
//         each sequence.
// Cost:   some virtual calls for each call of a layer, and none for an entry or a unit. In return managers, saves and forks of
//         all presets share their code.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/call_half.hpp>
#include <kvtl/core/plan/row_plan.hpp>
#include <kvtl/core/save/branches.hpp>
#include <kvtl/save/part_stream.hpp>
#include <kvtl/statistics.hpp>
#include <kvtl/status.hpp>
#include <kvtl/views.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvtl { inline namespace v0 {

class shard_base {
  public:
    shard_base() = default;
    shard_base(const shard_base&) = delete;
    shard_base& operator=(const shard_base&) = delete;

    /// Set while a call is under way.
    std::atomic_flag busy = ATOMIC_FLAG_INIT;

    // What calls without a shard do in all shards or in none: each is called for one half, then for the other.
    virtual status prefill(call_half h, std::uint32_t slot, std::uint32_t layer, const layer_input& in,
                           std::uint32_t tokens, const tensor_span& out, bool last) noexcept = 0;
    /// The attention of prefill(), for a layer whose store a later layer completes (core/layer_map.hpp): nothing stays.
    virtual status attend_only(call_half h, std::uint32_t slot, std::uint32_t layer, const layer_input& in,
                               std::uint32_t tokens, const tensor_span& out) noexcept = 0;
    /// stays: the tokens are appended, too; else a later layer appends them.
    virtual status attend(call_half h, std::uint32_t slot, std::uint32_t layer, const layer_input& in,
                          std::uint32_t tokens, const tensor_span& out, bool stays) noexcept = 0;
    virtual status append(call_half h, std::uint32_t slot, std::uint32_t layer,
                          const layer_input& in) noexcept = 0;
    /// Another shard could not commit a turn: the layer is empty again, or says from now on that the sequence has to be ended.
    virtual void give_up_turn(std::uint32_t slot, std::uint32_t layer, bool empty) noexcept = 0;

    virtual void before_query(std::uint32_t slot, std::uint32_t layer) noexcept = 0;
    virtual status prefetch(std::uint32_t slot, std::uint32_t layer, const tensor_view& q) noexcept = 0;
    /// Reads what the layer's last step chose and is not in memory, as far as free frames go.
    virtual status read_back(std::uint32_t slot, std::uint32_t layer) noexcept = 0;
    /// A hint: a step with this query comes, perhaps after those of other sequences. False when nothing is left for more of
    /// them.
    virtual bool prefetch_for_batch(std::uint32_t slot, std::uint32_t layer,
                                    const tensor_view& q) noexcept = 0;
    /// Gives up what was announced and has not come.
    virtual void cancel_prefetch() noexcept = 0;
    /// The prompt of a layer is complete, so that a token may come.
    virtual status ready(const char* call, std::uint32_t slot, std::uint32_t layer) noexcept = 0;
    virtual status check_rewind(std::uint32_t slot, std::uint32_t layer, std::uint32_t n,
                                const rewind_argument& asked) noexcept = 0;
    virtual void rewind(std::uint32_t slot, std::uint32_t layer, std::uint32_t n) noexcept = 0;
    /// Kept entries of this layer's prompt are settled, but could not be moved so far.
    [[nodiscard]] virtual bool waits(std::uint32_t slot, std::uint32_t layer) const noexcept = 0;
    /// Chunks of a prompt have come that will be thinned out when its last one comes.
    [[nodiscard]] virtual bool will_drop(std::uint32_t slot, std::uint32_t layer) const noexcept = 0;
    /// Tokens that a layer has seen, dropped and staged ones included; `none` when the shard has no lane of
    /// it.
    [[nodiscard]] virtual std::uint32_t tokens(std::uint32_t slot, std::uint32_t layer) noexcept = 0;
    /// Entries of the shard's heads that a layer holds, staged ones included.
    [[nodiscard]] virtual std::size_t kept_entries(std::uint32_t slot, std::uint32_t layer) noexcept = 0;

    /// A layer that slides keeps what its queries see, whatever the preset does.
    [[nodiscard]] bool is_sliding(std::uint32_t layer) const noexcept { return slides(layer); }
    /// Of the sequence, and of those that it will copy layers from or that will copy its layers.
    [[nodiscard]] status retry_writes(std::uint32_t slot) noexcept {
        status done = retry_own_writes(slot);
        for (std::uint32_t other = 0; other < calls_.size(); ++other)
            if (branches_.related(slot, other))
                if (status s = retry_own_writes(other); !s) done = s;
        return done;
    }
    /// No branch waits for a layer of the sequence.
    void end(std::uint32_t slot) noexcept {
        for (std::uint32_t layer = 0; layer < layers_; ++layer) {
            const std::uint32_t from = branches_.source(slot, layer);
            if (from == none) continue;
            branches_.copied(slot, layer);
            withdraw_copy(from, slot, layer);
        }
        withdraw_copies(slot);
        calls_[division_.seat(slot)] = {};
        forget(slot);
    }

    // Branches (core/save/branches.hpp). `settle`: a layer is about to be touched, and is copied by all that wait for it.
    /// A slot that nobody sees yet becomes a branch of a sequence that is between two tokens. Nothing is copied so far, and
    /// what that will take is kept for it; but where so many sequences may share a page that their owners could not be
    /// counted, all is copied at once. After an error the slot is to be ended.
    [[nodiscard, gnu::cold]] status fork(std::uint32_t parent, std::uint32_t slot,
                                         std::uint32_t sequences) noexcept {
        begin_branch(parent, slot);
        for (std::uint32_t layer = 0; layer < layers_; ++layer) {
            const std::uint32_t from = branches_.holder(parent, layer);
            if (status s = promise_copy(from, slot, layer); !s) return s;
            branches_.wait_for(slot, layer, from);
        }
        return sequences > most_owners() ? copy_all_own(slot) : status{};
    }
    /// Fails where a device fails, in which case the layers that wait still do: the call may be repeated.
    [[nodiscard]] status settle(std::uint32_t slot, std::uint32_t layer) noexcept {
        if (branches_.source(slot, layer) != none) return copy_own(slot, layer);
        for (std::uint32_t b = branches_.next_branch(slot, layer); b != none;
             b = branches_.next_branch(slot, layer))
            if (status s = copy_own(b, layer); !s) return s;
        return {};
    }
    /// The sequence has all of its layers. Others may wait for them.
    [[nodiscard]] status copy_all_own(std::uint32_t slot) noexcept {
        for (std::uint32_t layer = 0; layer < layers_; ++layer)
            if (branches_.source(slot, layer) != none)
                if (status s = copy_own(slot, layer); !s) return s;
        return {};
    }
    /// No other sequence waits for a layer of this one, which may go.
    [[nodiscard]] status copy_to_branches(std::uint32_t slot) noexcept {
        for (std::uint32_t layer = 0; layer < layers_; ++layer)
            if (branches_.source(slot, layer) == none)
                if (status s = settle(slot, layer); !s) return s;
        return {};
    }
    [[nodiscard]] status settle_all(std::uint32_t slot) noexcept {
        for (std::uint32_t layer = 0; layer < layers_; ++layer)
            if (status s = settle(slot, layer); !s) return s;
        return {};
    }

    [[nodiscard]] statistics stats() const noexcept {
        statistics s = counters();
        branches_.each([&](std::uint32_t branch, std::uint32_t layer) {
            s += held(branches_.source(branch, layer), layer);
        });
        return s;
    }
    /// What the calls of a sequence did in this shard, and what it holds here now.
    [[nodiscard]] sequence_statistics stats(std::uint32_t slot) const noexcept {
        sequence_statistics s = calls_[division_.seat(slot)];
        for (std::uint32_t layer = 0; layer < layers_; ++layer) {
            const statistics now = held(branches_.holder(slot, layer), layer);
            s.units += now.units, s.kept_bytes += now.kept_bytes;
        }
        s.frame_bytes = frame_bytes(slot);
        return s;
    }
    /// A call of a sequence begins, and ends.
    void begin_call() noexcept { before_ = counted(); }
    void end_call(std::uint32_t slot) noexcept { calls_[division_.seat(slot)].add(counted(), before_); }

    void init_sequences(const sequence_tables& all, const shard_division& division,
                        std::uint32_t layers) noexcept {
        branches_ = branch_table(all.branches, layers);
        division_ = division;
        calls_ = all.calls;
        std::fill(calls_.begin(), calls_.end(), sequence_statistics());
        layers_ = layers;
    }

  protected:
    ~shard_base() = default;

    /// True for a layer that slides. `layer` becomes its number among its kind.
    [[nodiscard]] bool slides(std::uint32_t& layer) const noexcept {
        if (places_.empty()) return false;
        const layer_place at = places_[layer];
        layer = at.index;
        return at.slides;
    }
    /// The sequence that has what the layer is.
    [[nodiscard]] std::uint32_t holder(std::uint32_t slot, std::uint32_t layer) const noexcept {
        return branches_.holder(slot, layer);
    }

    std::span<layer_place> places_; ///< per store (core/layer_map.hpp); empty where none slides

  private:
    /// What all calls have been counted for so far.
    [[nodiscard]] virtual sequence_statistics counted() const noexcept = 0;
    virtual status retry_own_writes(std::uint32_t slot) noexcept = 0;
    virtual void forget(std::uint32_t slot) noexcept = 0;
    virtual void begin_branch(std::uint32_t parent, std::uint32_t slot) noexcept = 0;
    virtual status promise_copy(std::uint32_t from, std::uint32_t to, std::uint32_t layer) noexcept = 0;
    /// A layer that waits to be copied is not.
    virtual void withdraw_copy(std::uint32_t from, std::uint32_t to, std::uint32_t layer) noexcept = 0;
    virtual void withdraw_copies(std::uint32_t slot) noexcept = 0;
    /// What can fail comes first.
    virtual status copy_layer(std::uint32_t from, std::uint32_t to, std::uint32_t layer) noexcept = 0;
    /// Sequences that may share a page.
    [[nodiscard]] virtual std::uint32_t most_owners() const noexcept = 0;
    [[nodiscard]] virtual statistics counters() const noexcept = 0;
    /// Of the frames of a sequence's pool.
    [[nodiscard]] virtual std::size_t frame_bytes(std::uint32_t slot) const noexcept = 0;
    /// What a layer holds now, as stats() counts it.
    [[nodiscard]] virtual statistics held(std::uint32_t slot, std::uint32_t layer) const noexcept = 0;

    /// Copies a layer that waits for it.
    [[nodiscard]] status copy_own(std::uint32_t slot, std::uint32_t layer) noexcept {
        if (status s = copy_layer(branches_.source(slot, layer), slot, layer); !s) return s;
        branches_.copied(slot, layer);
        for (std::uint32_t l = 0; l < layers_; ++l)
            if (branches_.source(slot, l) != none) return {};
        withdraw_copies(slot);
        return {};
    }

    branch_table branches_;
    shard_division division_;
    std::span<sequence_statistics> calls_; ///< (sequences of this shard)
    sequence_statistics before_;           ///< the call that is under way
    std::uint32_t layers_ = 0;             ///< stores
};

/// Calls of a shard that many programs never make: a manager has them compiled where it is saved, loaded or resized.
struct rare_shard_calls {
    /// What the shard has of a layer's KV head, to or from a stream; nothing where that belongs to another shard. Every layer is
    /// complete. batch: memory for pages on their way.
    void (*parts)(shard_base& s, part_stream& io, std::uint32_t slot, std::uint32_t layer, std::uint32_t head,
                  std::span<std::byte> batch) noexcept;
    /// Which units of the sequence are in memory (core/save/hot_set.hpp), where that decides. False where a save does not keep
    /// it or the shard cannot load it.
    bool (*hot_set_parts)(shard_base& s, part_stream& io, std::uint32_t slot, const pool_role& role) noexcept;
    /// A save has the sequence as it is now: the next one may leave out what does not change until then.
    void (*note_saved)(shard_base& s, std::uint32_t slot) noexcept;
    /// Waits for all transfers and gives prefetches up, so that frames may go.
    status (*come_to_rest)(shard_base& s) noexcept;
    /// So many frames in each pool, or in that of each sequence, where `of` says it. False when the system does not take the
    /// memory of those that go. large: of frames that come, in large pages.
    bool (*limit_frames)(shard_base& s, std::uint32_t frames, std::span<const std::uint32_t> of,
                         bool large) noexcept;
};

}} // namespace kvtl::v0
