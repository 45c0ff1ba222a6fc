// A whole sequence to and from a target, and what tells it from another one.
//
// What:   one walk over layers and KV heads of the model, each in the shard that has it. So a saved sequence knows nothing of
//         shards and slots, and a cache that divides heads otherwise can go on with it. A head of a layer is a section.
// Memory: while it lasts, beside memory_bytes: `batch_bytes` for pages on their way (a save: an eighth of it), and a reference
//         of 16 bytes for each page of a head. A fork takes none.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/cache_core.hpp>
#include <kvtl/core/save/compare_identity.hpp>
#include <kvtl/save/part_stream.hpp>
#include <kvtl/save/saved.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <utility>
#include <vector>

namespace kvtl { inline namespace v0 {

/// Heads of layers to the sections of a save_target. Pages that the target has of the sequence are kept.
template <class To> class save_stream final : public part_stream {
  public:
    /// again: the target's published generation is the last save of this sequence.
    save_stream(To& to, bool again) noexcept
        : part_stream(direction::save, "save"), to_(&to), again_(again) {}

    void next_head(std::uint32_t index) noexcept override {
        finish();
        kind_ = section_kind::lane;
        index_ = index;
        before_.clear();
        here_ = behind_ = written_ = 0;
        begins_ = true;
        if constexpr (save_source<To>) {
            const saved_section* was =
                again_ ? find_section(to_->sections(), section_kind::pages, index) : nullptr;
            if (was == nullptr) return;
            before_.resize(was->bytes / sizeof(block_ref));
            if (status s = to_->get(*was, 0, std::as_writable_bytes(std::span(before_))); !s)
                fail(std::move(s));
        }
    }
    bool next_pool(std::uint32_t part) noexcept override {
        finish();
        kind_ = section_kind::hot;
        index_ = part;
        return true;
    }
    /// Units are where they were, each up to a reference that `ends`. Pages behind the last such reference may change.
    [[nodiscard]] bool has_page(bool unchanged, bool ends) noexcept override {
        if (std::exchange(begins_, ends)) {
            const auto is_last = [](const block_ref& r) { return r.ends != 0; };
            const auto last = std::find_if(before_.begin() + behind_, before_.end(), is_last);
            here_ = behind_;
            if (last != before_.end()) behind_ = last - before_.begin() + 1;
        }
        const bool has = unchanged && here_ < behind_;
        pages_.push_back(has ? before_[static_cast<std::size_t>(here_++)] : block_ref{});
        pages_.back().ends = ends ? 1 : 0;
        return has;
    }
    /// The last head is complete.
    void finish() noexcept {
        if (ok() && !pages_.empty())
            if (status s = to_->put(section_kind::pages, index_, std::as_bytes(std::span(pages_))); !s)
                fail(std::move(s));
        pages_.clear();
    }

  private:
    status move(std::byte* at, std::size_t n) noexcept override { return to_->put(kind_, index_, {at, n}); }
    status move_pages(std::byte* at, std::size_t n, std::size_t page_bytes) noexcept override {
        refs_.resize(n / page_bytes);
        if (status s = to_->put_pages({at, n}, refs_); !s) return s;
        for (block_ref& ref : refs_) {
            while (pages_[written_].block != 0) ++written_;
            ref.ends = pages_[written_].ends;
            pages_[written_] = ref;
        }
        return {};
    }

    To* to_;
    bool again_, begins_ = true;
    section_kind kind_ = section_kind::lane;
    std::uint32_t index_ = 0;
    std::vector<block_ref> pages_, before_; ///< of the head, now and in the last save
    std::ptrdiff_t here_ = 0,
                   behind_ = 0; ///< in `before_`: the unit's next page, and where the next unit begins
    std::size_t written_ = 0;   ///< all of `pages_` in front of it have a block
    std::vector<block_ref> refs_;
};

/// Sections of a save_source to heads of layers.
template <class From> class load_stream final : public part_stream {
  public:
    explicit load_stream(From& from) noexcept : part_stream(direction::load, "load"), from_(&from) {}

    void next_head(std::uint32_t index) noexcept override {
        const auto of = [&](section_kind kind) { // a head that begins no lane has nothing
            const saved_section* s = find_section(from_->sections(), kind, index);
            return s == nullptr ? saved_section{.index = index} : *s;
        };
        lane_ = of(section_kind::lane);
        pages_ = of(section_kind::pages);
        at_ = page_at_ = 0;
    }
    bool next_pool(std::uint32_t part) noexcept override {
        const saved_section* s = find_section(from_->sections(), section_kind::hot, part);
        if (s == nullptr) return false;
        lane_ = *s;
        at_ = 0;
        return true;
    }

  private:
    status move(std::byte* at, std::size_t n) noexcept override {
        if (n > lane_.bytes - at_)
            return status::failure(errc::corrupt, "load: %s %u ends after %llu bytes", name_of(lane_.kind),
                                   lane_.index, static_cast<unsigned long long>(lane_.bytes));
        const status s = from_->get(lane_, at_, {at, n});
        at_ += n;
        return s;
    }
    status move_pages(std::byte* at, std::size_t n, std::size_t page_bytes) noexcept override {
        refs_.resize(n / page_bytes);
        const std::span<std::byte> refs = std::as_writable_bytes(std::span(refs_));
        if (refs.size() > pages_.bytes - page_at_)
            return status::failure(errc::corrupt, "load: head %u has %llu pages and needs more", lane_.index,
                                   static_cast<unsigned long long>(pages_.bytes / sizeof(block_ref)));
        if (status s = from_->get(pages_, page_at_, refs); !s) return s;
        page_at_ += refs.size();
        return from_->get_pages(refs_, {at, n});
    }

    From* from_;
    saved_section lane_{}, pages_{};
    std::uint64_t at_ = 0, page_at_ = 0;
    std::vector<block_ref> refs_;
};

/// Tokens of the first layer.
template <element E> [[nodiscard]] std::uint32_t tokens_of(cache_core<E>& core, std::uint32_t slot) noexcept {
    std::uint32_t n = 0;
    core.for_each_owner(slot, [&](shard_base& shard) {
        if (const std::uint32_t have = shard.tokens(slot, 0); have != none) n = have;
    });
    return n;
}
/// Between two tokens: every layer has taken the same ones, and no prompt is open.
template <element E>
[[nodiscard, gnu::cold]] status at_rest(cache_core<E>& core, const char* call, std::uint32_t slot,
                                        std::uint32_t tokens) noexcept {
    status wrong;
    core.for_each_owner(slot, [&](shard_base& shard) {
        for (std::uint32_t l = 0; l < core.layers.stores() && wrong.ok(); ++l) {
            if (tokens > 0) wrong = shard.ready(call, slot, l);
            const std::uint32_t have = shard.tokens(slot, l);
            if (wrong.ok() && have != none && have != tokens)
                wrong = status::failure(
                    errc::invalid_argument,
                    "%s: layer %u has %u tokens and layer %u has %u; valid: between tokens, when "
                    "every layer has taken the same",
                    call, core.layers.owner_of(l), have, core.layers.owner_of(0), tokens);
        }
    });
    return wrong;
}

/// A core's sequences on their way. The caller holds all shards that have a part of the sequence.
template <element E> class sequence_parts {
  public:
    static constexpr std::size_t batch_bytes = std::size_t{1} << 20;

    sequence_parts(cache_core<E>& core, const rare_shard_calls& shards) noexcept
        : core_(&core), shards_(&shards) {}

    /// Tells sequences apart that a save would tell apart.
    [[nodiscard]] result<std::uint64_t> hash(std::uint32_t slot) {
        hash_stream io;
        if (status s = copy_all_own(slot); !s) return s;
        if (status s = walk(io, slot); !s) return s;
        return io.value();
    }

    template <save_target To>
    [[nodiscard]] result<save_facts> save(std::uint32_t slot, To& to, const save_options& o) {
        const std::uint32_t tokens = tokens_of(*core_, slot);
        status done = at_rest(*core_, "save", slot, tokens);
        if (done.ok()) done = copy_all_own(slot);
        if (done.ok()) done = to.begin();
        if (done.ok()) {
            const std::uint64_t last = core_->saved_as[slot];
            save_stream<To> io(to, last != 0 && save_facts(to.facts()).digest == last);
            done = walk(io, slot);
            if (done.ok()) {
                io.finish();
                static_cast<void>(hot_sets(io, slot));
                done = io.error();
            }
        }
        if (done.ok()) {
            auto facts =
                to.commit({.tokens = tokens, .model = o.model, .identity = core_->identity, .note = o.note});
            if (facts.ok()) {
                note_saved(slot, facts->digest);
                return facts;
            }
            to.abandon();
            return facts.error();
        }
        to.abandon();
        return done;
    }

    /// Into a slot that nobody sees yet. After an error its lanes are as after end(). True where the continuation has the bits
    /// that the saved sequence would have had.
    template <save_source From>
    [[nodiscard]] result<bool> load(std::uint32_t slot, From& from, const load_options& o) {
        const save_facts facts = from.facts();
        if (o.model != 0 && facts.model != 0 && o.model != facts.model)
            return status::failure(
                errc::file_refused,
                "load: model is %016llx and was %016llx when the sequence was saved; valid: the same "
                "weights, or 0 for no check",
                static_cast<unsigned long long>(o.model), static_cast<unsigned long long>(facts.model));
        auto saved = from.identity();
        if (!saved) return saved.error();
        if (status s = compare_identity(*saved, core_->identity); !s) return s;
        if (facts.tokens > core_->calls.max_tokens)
            return status::failure(errc::out_of_range,
                                   "load: the sequence has %llu tokens; valid: up to max_tokens = %u",
                                   static_cast<unsigned long long>(facts.tokens), core_->calls.max_tokens);
        load_stream<From> io(from);
        status done = walk(io, slot);
        if (done.ok()) done = at_rest(*core_, "load", slot, static_cast<std::uint32_t>(facts.tokens));
        if (done.ok()) {
            const bool same = hot_sets(io, slot) || !core_->residency_decides;
            if (io.ok()) {
                note_saved(slot, facts.digest);
                return same && same_attention(*saved, core_->identity);
            }
            done = io.error();
        }
        core_->for_each_owner(slot, [&](shard_base& shard) { shard.end(slot); });
        return done;
    }

  private:
    /// A branch copies the layers that it still has from others.
    [[nodiscard]] status copy_all_own(std::uint32_t slot) noexcept {
        status done;
        core_->for_each_owner(slot, [&](shard_base& shard) {
            if (done.ok()) done = shard.copy_all_own(slot);
        });
        return done;
    }
    /// Which units are in memory, of each shard that has a part of the sequence. True: all of them have it.
    [[nodiscard]] bool hot_sets(part_stream& io, std::uint32_t slot) noexcept {
        pool_role role{.parts = 0, .replacement = core_->replacement};
        core_->for_each_owner(slot, [&](const shard_base&) { ++role.parts; });
        bool all = true;
        core_->for_each_owner(slot, [&](shard_base& shard) {
            all = io.ok() && io.next_pool(role.part) && shards_->hot_set_parts(shard, io, slot, role) && all;
            ++role.part;
        });
        return all;
    }
    void note_saved(std::uint32_t slot, std::uint64_t digest) noexcept {
        core_->for_each_owner(slot, [&](shard_base& shard) { shards_->note_saved(shard, slot); });
        core_->saved_as[slot] = digest;
    }
    /// Memory for pages on their way, where there are any. From the heap, which gives a later save the same memory: to map,
    /// clear and unmap it takes longer than the copies.
    struct page_batch {
        std::unique_ptr<std::byte[]> held;
        std::span<std::byte> pages;

        [[nodiscard]] status take(std::size_t bytes, std::size_t alignment) {
            std::size_t room = bytes + alignment;
            held.reset(new (std::nothrow) std::byte[room]);
            void* at = held.get();
            if (at == nullptr || std::align(alignment, bytes, at, room) == nullptr)
                return status::failure(errc::bound_too_small, "memory: the system does not give %zu bytes",
                                       room);
            pages = {static_cast<std::byte*>(at), bytes};
            return {};
        }
    };
    [[nodiscard]] status walk(part_stream& io, std::uint32_t slot) {
        page_batch batch;
        // A save moves what has changed, and a first touch of memory takes longer than the copy that follows.
        if (core_->stores)
            if (status s =
                    batch.take(std::max(io.loads() ? batch_bytes : batch_bytes / 8, 4 * core_->page_bytes),
                               std::max<std::size_t>(core_->device_info().page, 4096));
                !s)
                return s;
        const std::uint32_t heads = core_->kv_heads;
        for (std::uint32_t layer = 0; layer < core_->layers.stores() && io.ok(); ++layer)
            for (std::uint32_t head = 0; head < heads && io.ok(); ++head) {
                io.next_head(layer * heads + head);
                core_->for_each_owner(slot, [&](shard_base& shard) {
                    shards_->parts(shard, io, slot, layer, head, batch.pages);
                });
            }
        if (io.memory_is_left())
            static_cast<void>(batch.held.release()); // once: the cache takes no call after that
        return io.error();
    }

    cache_core<E>* core_;
    const rare_shard_calls* shards_;
};

}} // namespace kvtl::v0
