// A lane of units or fixed groups on its way to or from a stream: its state, its arrays, its pages.
//
// What:   pages come from memory or from storage, a batch at a time. Unfinished pages are in memory only. A loaded lane has
//         places of its own on storage, and no unit in memory. The unfinished page of a loaded unit is on storage, too.
// Memory: the pages of a batch, which the caller lends.
// Errors: what does not fit, what contradicts itself, what a device fails. A lane that failed to load is to be forgotten.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/store/group_store.hpp>
#include <kvtl/core/store/unit_store.hpp>
#include <kvtl/save/part_stream.hpp>

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

namespace kvtl { inline namespace v0 {

/// Store: that of the lane. No write is in the air, and when a lane is loaded nothing is pinned.
template <class Types, class Store> class lane_parts {
    using lane = typename Types::lane;
    using pool = typename Types::pool;

  public:
    /// batch: memory for whole pages, which transfers reach.
    lane_parts(Store& s, part_stream& io, std::span<std::byte> batch) noexcept
        : store_(&s), io_(&io), batch_(pool::plain(batch, s.format().page_bytes)),
          most_(static_cast<std::uint32_t>(batch.size() / s.format().page_bytes)) {}

    void move(std::uint32_t lane_id) noexcept {
        lane_state state = store_->at(lane_id).state().identity();
        io_->value(state);
        if (io_->loads() && !begin(lane_id, state)) return;
        const lane l = store_->at(lane_id); // behind begin(), which may have moved it
        l.each_part(store_->key_bytes(state), [this](std::byte* at, std::size_t n) { io_->bytes(at, n); });
        if constexpr (!Types::sequential) move_capacities(l);
        if (!io_->ok()) return;
        if (io_->loads()) {
            if (!store_->holds_together(l))
                return io_->fail(status::failure(errc::corrupt,
                                                 "load: a saved lane contradicts itself: its entries are not "
                                                 "where its units say"));
            if (!store_->place_pages(lane_id, capacity_))
                return io_->fail(status::failure(errc::disk_full,
                                                 "load: the file has no place for a lane of %u entries",
                                                 l.state().tokens));
            if (status s = store_->ensure_space(0); !s) return io_->fail(std::move(s));
        }
        move_pages(lane_id);
    }

  private:
    /// Pages that each unit's place has room for. An entry that finds none moves its unit first, if it is resident.
    void move_capacities(const lane& l) noexcept {
        capacity_.assign(l.state().units, 0);
        if (!io_->loads())
            std::transform(l.units().begin(), l.units().end(), capacity_.begin(),
                           [this](const unit_record& u) { return store_->layout().capacity(u.where); });
        io_->array(capacity_.data(), capacity_.size());
    }

    /// A lane of this state, if it fits: its tables have room, and nothing is in them.
    [[nodiscard]] bool begin(std::uint32_t lane_id, const lane_state& s) noexcept {
        const lane_sizes& sizes = store_->lanes().sizes;
        const auto refuse = [this](const char* name, std::uint32_t n, std::uint32_t most) {
            io_->fail(status::failure(errc::out_of_range,
                                      "load: a saved lane has %u %s; valid: up to %u in this cache", n, name,
                                      most));
            return false;
        };
        if (!io_->ok()) return false;
        if (s.tokens > sizes.max_tokens) return refuse("tokens", s.tokens, sizes.max_tokens);
        if (s.sinks > sizes.sinks) return refuse("sinks", s.sinks, sizes.sinks);
        if (s.window_begin > s.tokens || s.tokens - s.window_begin > sizes.window + sizes.spare)
            return refuse("tokens in its window", s.tokens - s.window_begin, sizes.window + sizes.spare);
        if (s.units > sizes.max_units) return refuse("units", s.units, sizes.max_units);
        if (s.buffered > sizes.buffer) return refuse("pending entries", s.buffered, sizes.buffer);
        if (s.stored > s.tokens) return refuse("stored entries", s.stored, s.tokens);
        if (Types::sequential && sizes.ragged && s.stream_pages > sizes.stream_pages)
            return refuse("pages of its stream", s.stream_pages, sizes.stream_pages);
        if (s.staged != 0 || s.cut_short || s.prompt_open || s.runs != 0) {
            io_->fail(status::failure(errc::corrupt, "load: a saved lane is in the middle of a prompt"));
            return false;
        }
        store_->make_room_for_prompt(lane_id, s.units);
        const lane l = store_->at(lane_id);
        l.state() = s;
        for (std::uint32_t u = 0; u < s.units; ++u) l.begin_unit(u, {});
        return true;
    }

    void move_pages(std::uint32_t lane_id) noexcept {
        count_ = 0;
        store_->each_page(lane_id, [this](const stored_page& p) {
            if (!io_->ok() || io_->has_page(p.unchanged, p.ends)) return;
            page_[count_++] = p;
            if (count_ == std::min(most_, at_once)) flush();
        });
        flush();
    }
    /// Moves the pages that have been gathered.
    void flush() noexcept {
        if (count_ == 0 || !io_->ok()) return;
        io_->loads() ? fill() : show();
        count_ = 0;
    }
    /// All of them in one piece: what memory has is copied to where the others were read.
    void show() noexcept {
        if (status s = transfer(0, true); !s) return io_->fail(std::move(s));
        const std::uint32_t page_bytes = store_->format().page_bytes;
        for (std::uint32_t i = 0; i < count_; ++i) {
            if (page_[i].bytes == nullptr) continue;
            std::memcpy(batch_.bytes(i), page_[i].bytes, page_bytes);
            if (page_[i].open_rows != none) store_->pad(page_[i], batch_.bytes(i));
        }
        io_->pages(batch_.bytes(0), std::size_t{count_} * page_bytes, page_bytes);
    }
    void fill() noexcept {
        const std::uint32_t page_bytes = store_->format().page_bytes;
        io_->pages(batch_.bytes(0), std::size_t{count_} * page_bytes, page_bytes);
        if (!io_->ok()) return;
        for (std::uint32_t i = 0; i < count_; ++i)
            if (page_[i].bytes != nullptr) std::memcpy(page_[i].bytes, batch_.bytes(i), page_bytes);
        const std::uint32_t batch =
            store_->io().free_io_batch(store_->first_write_io_batch(), Store::write_io_batches);
        if (status s = transfer(batch, false); !s) io_->fail(std::move(s));
    }
    /// Reads, or writes, those of the gathered pages that memory does not have. Waits for them.
    [[nodiscard]] status transfer(std::uint32_t id, bool reads) noexcept {
        auto& transfers = store_->io();
        auto& batch = transfers.at(id);
        batch.clear();
        const auto send = [&]() -> status {
            if (batch.pages().empty()) return {};
            if (status s = reads ? transfers.submit_reads(id, batch_, true)
                                 : transfers.submit_writes(id, batch_, true);
                !s)
                return s;
            transfers.drain(id); // after a device was given up nothing is submitted
            if (transfers.gave_up()) io_->leave_memory();
            const status done = batch.error();
            batch.clear();
            return done;
        };
        for (std::uint32_t i = 0; i < count_; ++i) {
            if (page_[i].bytes != nullptr) continue;
            if (!batch.room(1))
                if (status s = send(); !s) return s;
            batch.add(page_[i].page, i, none);
        }
        return send();
    }

    static constexpr std::uint32_t at_once = 256;

    Store* store_;
    part_stream* io_;
    pool batch_;
    std::uint32_t most_, count_ = 0;
    std::vector<std::uint32_t> capacity_;
    stored_page page_[at_once];
};

}} // namespace kvtl::v0
