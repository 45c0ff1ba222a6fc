// frame_pool against a table of states that is counted anew after every call.
// SPDX-License-Identifier: MIT
#include <kvtl/core/store/frame_pool.hpp>
#include <kvtl/core/store/pool_division.hpp>
#include <kvtl/geometry.hpp>
#include <kvtl/policies/replace_fifo_by_lane.hpp>
#include <kvtl/policies/replace_lfu.hpp>
#include <kvtl/policies/replace_lru.hpp>
#include <kvtl/policies/replace_s3_fifo.hpp>
#include <kvtl/reservation.hpp>

#include "contracts/replacement.hpp" // guarded_bytes
#include "support/oracle.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace core_store_frame_pool_test {

using namespace kvtl;

namespace {

using pool_type = frame_pool<lru>;

constexpr std::uint32_t page = 64;

class fixture {
  public:
    explicit fixture(std::uint32_t count, std::uint32_t unit_pages = 2, std::uint32_t tails = 4)
        : bytes_(pool_type::table_bytes(count, unit_pages, tails, 64)), frames_(std::size_t{count} * page),
          tables_(bytes_), carver_(tables_.memory()),
          pool({}, frames_, page, unit_pages, tails, 64, carver_) {}
    [[nodiscard]] bool intact() const { return tables_.intact() && carver_.used() <= bytes_; }

  private:
    std::size_t bytes_;
    std::vector<std::byte> frames_;
    kvtl_test::guarded_bytes tables_;
    carver carver_;

  public:
    pool_type pool;
};

} // namespace

TEST_CASE("every frame is handed out once, with a page of its own") {
    fixture f(5);
    CHECK(f.pool.size() == 5);
    CHECK(f.pool.memory().size() == 5 * page);
    std::vector<std::uint32_t> taken;
    for (std::uint32_t i = 0; i < 5; ++i) {
        const std::uint32_t frame = f.pool.pop_free();
        REQUIRE(frame < 5);
        CHECK(std::find(taken.begin(), taken.end(), frame) == taken.end());
        CHECK(f.pool.bytes(frame) == f.pool.memory().data() + std::size_t{frame} * page);
        taken.push_back(frame);
        CHECK(f.pool.in_use() == i + 1);
    }
    CHECK(f.pool.pop_free() == none);
    f.pool.settle(taken[2]); // nothing holds it
    CHECK(f.pool.pop_free() == taken[2]);
    CHECK(f.pool.peak() == 5);
}

TEST_CASE("runs are frames in a row, and one is found whenever there is one") {
    constexpr std::uint32_t frames = 40, longest = 9;
    fixture f(frames, longest);
    std::vector<std::uint32_t> owner(frames, none); // head of the run that a frame belongs to
    std::vector<std::uint32_t> heads;
    const auto widest = [&](const auto& counts) { // stretch of frames
        std::uint32_t best = 0, now = 0;
        for (const std::uint32_t o : owner) best = std::max(best, now = counts(o) ? now + 1 : 0);
        return best;
    };
    constexpr std::uint32_t away = frames; // an owner that is no frame
    const auto free = [](std::uint32_t o) { return o == none; };
    const auto unpinned = [&](std::uint32_t o) { return o == none || (o != away && f.pool[o].pins == 0); };
    const auto leave = [&](std::uint32_t head) {
        f.pool.replacement().remove(head);
        f.pool.unlink_run(head);
        std::replace(owner.begin(), owner.end(), head, none);
        heads.erase(std::find(heads.begin(), heads.end(), head));
    };
    oracle::generator rng(11);
    std::uint32_t found_some = 0, found_none = 0, blocked = 0, end = 0;
    for (int step = 0; step < 20'000; ++step) {
        const std::uint32_t n = 1 + static_cast<std::uint32_t>(rng.below(longest));
        CHECK(f.pool.may_make_room(n) == (widest(unpinned) >= n));
        blocked += widest(unpinned) < n ? 1 : 0;
        const std::uint32_t head = f.pool.pop_run(n);
        REQUIRE((head != none) == (widest(free) >= n));
        (head != none ? found_some : found_none) += 1;
        if (head != none) {
            REQUIRE(head + n <= frames);
            end = std::max(end, head + n);
            CHECK(f.pool[head].linked);
            CHECK(f.pool[head].run == n);
            for (std::uint32_t i = 0; i < n; ++i) {
                CHECK(owner[head + i] == none);
                CHECK(f.pool[head + i].behind == (i > 0));
                owner[head + i] = head;
            }
            heads.push_back(head);
            f.pool.replacement().admit(head, {});
            f.pool[head].pins = rng.below(4) == 0;
        }
        // Whoever was refused may or may not make room, and others may leave between two requests.
        for (std::uint64_t some = rng.below(2); some > 0 && !heads.empty(); --some)
            leave(heads[rng.below(heads.size())]);
        CHECK(f.pool.free() == static_cast<std::uint32_t>(std::count(owner.begin(), owner.end(), none)));
        if (step % 500 == 499) { // everything leaves at once, and the pool has fewer or more frames then
            CHECK(f.pool.peak() == end);
            while (!heads.empty()) leave(heads.back());
            const auto there = step % 1000 == 499
                                   ? longest + static_cast<std::uint32_t>(rng.below(frames - longest))
                                   : frames;
            f.pool.limit(there);
            std::fill(owner.begin(), owner.begin() + there, none);
            std::fill(owner.begin() + there, owner.end(), away);
            end = 0;
        }
    }
    CHECK(found_some > 5000);
    CHECK(found_none > 5000);
    CHECK(blocked > 50);
    CHECK(f.intact());
}

TEST_CASE("a pool with fewer frames hands out the first of them, and all again once it has them back") {
    fixture f(6);
    for (const std::uint32_t there : {2U, 5U, 0U, 6U}) {
        f.pool.limit(there);
        CHECK(f.pool.there() == there);
        CHECK(f.pool.memory().size() == std::size_t{there} * page);
        CHECK(f.pool.free() == there);
        CHECK(f.pool.peak() == 0);
        std::vector<std::uint32_t> taken;
        for (std::uint32_t i = f.pool.pop_free(); i != none; i = f.pool.pop_free()) taken.push_back(i);
        CHECK(taken.size() == there);
        for (const std::uint32_t i : taken) CHECK(i < there);
        CHECK(f.pool.in_use() == there);
        CHECK(f.pool.peak() == there);
        for (const std::uint32_t i : taken) f.pool.settle(i);
        CHECK(f.pool.in_use() == 0);
    }
    CHECK(f.pool.own() == 6);
    CHECK(f.intact());
}

TEST_CASE(
    "what is held stays where it is when frames go and come, but for tails, which move with what they hold") {
    fixture f(8);
    for (std::uint32_t i = 0; i < 8; ++i) {
        REQUIRE(f.pool.pop_free() == i);
        std::memset(f.pool.bytes(i), static_cast<int>(i + 1), page);
    }
    f.pool.link(1);
    for (const std::uint32_t tail : {7U, 2U, 5U}) {
        f.pool[tail].lane = tail;
        f.pool.mark_dirty(tail);
        std::memset(f.pool.running(tail), static_cast<int>(tail), 64);
    }
    for (const std::uint32_t i : {0U, 3U, 4U, 6U}) f.pool.settle(i);
    f.pool.limit(4);
    CHECK(f.pool.free() == 2); // 0 and 3
    for (const std::uint32_t from : {7U, 5U}) {
        const std::uint32_t to = f.pool.pop_free();
        REQUIRE(to < 4);
        f.pool.move_tail(from, to);
        CHECK(f.pool[from].away);
        CHECK(f.pool[to].dirty);
        CHECK(f.pool[to].lane == from);
        CHECK(f.pool.bytes(to)[page - 1] == std::byte(from + 1));
        CHECK(f.pool.running(to)[63] == std::byte(from));
        CHECK(f.pool.tails()[f.pool[to].tail].frame == to);
    }
    CHECK(f.pool.tail_count() == 3);
    CHECK(f.pool.oldest_tail(none) < 4); // the first one, that was 7
    CHECK(f.pool[f.pool.oldest_tail(none)].lane == 7);
    CHECK(f.pool.pop_free() == none);
    CHECK(f.pool.in_use() == 4);
    CHECK(f.pool.peak() == 4);
    f.pool.limit(8);
    CHECK(f.pool.free() == 4);
    CHECK(f.pool[1].linked);
    CHECK(f.pool.bytes(1)[0] == std::byte{2});
    CHECK(f.pool.bytes(2)[0] == std::byte{3});
    CHECK(f.intact());
}

TEST_CASE("the memory of frames that are away goes back to the system, and no other") {
    constexpr std::uint32_t frames = 6, large = 3 * 512; // frames that are no multiple of the system's pages
    const std::size_t page_bytes = system_page();
    auto memory = reservation::make(4 * page_bytes);
    REQUIRE(memory.ok());
    const std::span<std::byte> all = memory->memory();
    std::fill(all.begin(), all.end(), std::byte{7});
    std::vector<std::byte> tables(pool_type::table_bytes(frames, 1, 1, 64) + 64);
    carver c(tables);
    const std::span<std::byte> own = all.subspan(100, std::size_t{frames} * large); // a neighbour behind it
    pool_type pool({}, own, large, 1, 1, 64, c);
    pool.limit(1);
    REQUIRE(reservation::give_back(pool.memory_away()));
    std::size_t lost = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
        const bool zero = all[i] == std::byte{0};
        lost += zero ? 1 : 0;
        if (zero) CHECK((i >= 100 + large && i < 100 + own.size()));
    }
    CHECK(lost > 0);
    CHECK(lost % page_bytes == 0);
}

TEST_CASE("runs begin at the front again once all have left") {
    fixture f(40, 8);
    for (int i = 0; i < 10; ++i) f.pool.unlink_run(f.pool.pop_run(8));
    CHECK(f.pool.peak() == 8);
}

TEST_CASE("the memory lent as a whole counts towards the peak") {
    fixture f(8);
    CHECK(f.pool.peak() == 0);
    f.pool.note_used(6);
    CHECK(f.pool.peak() == 6);
    f.pool.note_used(2);
    CHECK(f.pool.peak() == 6);
}

TEST_CASE("wanted units leave after all others, pinned ones never") {
    fixture f(3);
    std::uint32_t unit[3];
    for (std::uint32_t& u : unit) {
        u = f.pool.pop_free();
        f.pool.link(u);
        f.pool.replacement().admit(u, {});
    }
    CHECK(f.pool.victim(0) == unit[0]); // the least recent
    f.pool[unit[0]].wanted = true;
    CHECK(f.pool.victim(0) == unit[1]);
    f.pool[unit[1]].pins = 1;
    CHECK(f.pool.victim(0) == unit[2]);
    f.pool[unit[2]].wanted = true;
    CHECK(f.pool.victim(0) == unit[0]); // nothing else is left
    f.pool[unit[0]].pins = f.pool[unit[2]].pins = 1;
    CHECK(f.pool.victim(0) == none);
    SUBCASE("a unit that has left is not wanted any more, even when it left a tail behind") {
        f.pool.mark_dirty(unit[0]);
        f.pool.unlink(unit[0]);
        CHECK_FALSE(f.pool[unit[0]].wanted);
    }
}

TEST_CASE("a frame is free once nothing holds it") {
    fixture f(1);
    const std::uint32_t i = f.pool.pop_free();
    f.pool.link(i);
    f.pool.mark_dirty(i);
    f.pool.write_started(i);
    f.pool.clear_dirty(i);
    f.pool.unlink(i);
    CHECK(f.pool.in_use() == 1);
    CHECK(f.pool.draining() == 1);
    SUBCASE("when the write has landed") {
        f.pool.write_finished(i, true);
        CHECK(f.pool.in_use() == 0);
        CHECK(f.pool.unsettled().empty());
    }
    SUBCASE("not when it failed: the frame has the only copy") {
        f.pool.write_finished(i, false);
        CHECK(f.pool.in_use() == 1);
        CHECK(f.pool[i].failed);
        CHECK(f.pool.unsettled().size() == 1);
        f.pool.write_started(i); // tried again
        CHECK_FALSE(f.pool[i].failed);
        CHECK(f.pool.unsettled().size() == 1);
        CHECK(f.pool.draining() == 1);
        f.pool.write_finished(i, true);
        CHECK(f.pool.in_use() == 0);
    }
    CHECK(f.pool.draining() == 0);
}

TEST_CASE("a cold unit's tail drains while it is written") {
    fixture f(2);
    const std::uint32_t i = f.pool.pop_free();
    f.pool.mark_dirty(i); // linked nowhere
    f.pool.write_started(i);
    CHECK(f.pool.draining() == 0); // still a tail
    f.pool.clear_dirty(i);
    CHECK(f.pool.draining() == 1);
    f.pool.write_finished(i, true);
    CHECK(f.pool.draining() == 0);
    CHECK(f.pool.in_use() == 0);
}

TEST_CASE("the oldest tail is the one that received no entry for the longest time") {
    fixture f(4);
    std::uint32_t t[3];
    for (std::uint32_t& i : t) {
        i = f.pool.pop_free();
        f.pool.mark_dirty(i);
    }
    CHECK(f.pool.tail_count() == 3);
    CHECK(f.pool.tail_quota() == 4);
    CHECK(f.pool.oldest_tail(none) == t[0]);
    CHECK(f.pool.oldest_tail(t[0]) == t[1]);
    f.pool.mark_dirty(t[0]); // one more entry
    CHECK(f.pool.tail_count() == 3);
    CHECK(f.pool.oldest_tail(none) == t[1]);
    f.pool.clear_dirty(t[1]);
    CHECK(f.pool.oldest_tail(none) == t[2]);
    f.pool.clear_dirty(t[1]); // not a tail any more: nothing happens
    CHECK(f.pool.tail_count() == 2);
}

TEST_CASE("the bytes beside a tail stay with it while others come and go") {
    constexpr std::uint32_t frames = 9;
    fixture f(frames, 2, frames);
    std::vector<std::byte> mark(frames);
    oracle::generator random(3);
    for (std::uint32_t i = 0; i < frames; ++i) static_cast<void>(f.pool.pop_free());
    for (int step = 1; step < 2000; ++step) {
        const auto i = static_cast<std::uint32_t>(random.below(frames));
        if (random.below(2) == 0) {
            f.pool.mark_dirty(i);
            mark[i] = static_cast<std::byte>(step);
            std::fill_n(f.pool.running(i), 64, mark[i]);
        } else {
            f.pool.clear_dirty(i);
        }
        for (const tail_record& t : f.pool.tails())
            REQUIRE(std::all_of(f.pool.running(t.frame), f.pool.running(t.frame) + 64,
                                [&](std::byte b) { return b == mark[t.frame]; }));
    }
    CHECK(f.intact());
}

TEST_CASE("random lives") {
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
        constexpr std::uint32_t frames = 12;
        fixture f(frames, 2, frames);
        pool_type& pool = f.pool;
        oracle::generator random(seed);
        std::vector<bool> out(frames, false); // handed out and held by something
        for (int step = 0; step < 3000; ++step) {
            const auto i = static_cast<std::uint32_t>(random.below(frames));
            const frame_record& r = pool[i];
            switch (random.below(7)) {
            case 0:
                if (const std::uint32_t fresh = pool.pop_free(); fresh != none) {
                    REQUIRE_FALSE(out[fresh]);
                    out[fresh] = true;
                    random.below(2) == 0 ? pool.link(fresh) : pool.mark_dirty(fresh);
                } else {
                    REQUIRE(std::count(out.begin(), out.end(), true) == frames);
                }
                break;
            case 1:
                if (out[i] && !r.linked) pool.link(i);
                break;
            case 2:
                if (out[i] && r.linked) pool.unlink(i);
                break;
            case 3:
                if (out[i]) pool.mark_dirty(i);
                break;
            case 4:
                if (out[i] && r.dirty) {
                    pool.clear_dirty(i);
                    pool.settle(i);
                }
                break;
            case 5:
                if (out[i] && !r.writing) pool.write_started(i);
                break;
            default:
                if (out[i] && r.writing) pool.write_finished(i, random.below(4) != 0);
                break;
            }
            std::uint32_t held = 0, draining = 0, tails = 0, unsettled = 0;
            for (std::uint32_t j = 0; j < frames; ++j) {
                const frame_record& x = pool[j];
                out[j] = out[j] && (x.linked || x.dirty || x.writing || x.failed);
                held += out[j] ? 1 : 0;
                draining += x.writing && !x.linked && !x.dirty ? 1 : 0;
                tails += x.dirty ? 1 : 0;
                unsettled += x.writing || x.failed ? 1 : 0;
            }
            REQUIRE(pool.in_use() == held);
            REQUIRE(pool.draining() == draining);
            REQUIRE(pool.tail_count() == tails);
            REQUIRE(pool.unsettled().size() == unsettled);
            for (const tail_record& t : pool.tails()) REQUIRE(pool[t.frame].dirty);
            for (const std::uint32_t u : pool.unsettled()) REQUIRE((pool[u].writing || pool[u].failed));
        }
        CHECK(f.intact());
    }
}

TEST_CASE("borrowed frames come as far as tables have bytes to spare, and go with what they held") {
    const std::size_t page_bytes = system_page();
    constexpr std::uint32_t own = 4, most = 400;
    auto memory = reservation::make((own + most) * page_bytes);
    REQUIRE(memory.ok());
    CHECK(memory->gives_back(own * page_bytes));
    const std::size_t bytes = pool_type::table_bytes(own + most, 2, 4, 64);
    kvtl_test::guarded_bytes tables(bytes);
    carver c(tables.memory());
    pool_type pool({}, memory->memory().first(own * page_bytes), static_cast<std::uint32_t>(page_bytes), 2, 4,
                   64, c, memory->memory().subspan(own * page_bytes));
    CHECK(pool.size() == own + most);
    CHECK(pool.own() == own);
    CHECK(pool.free() == own);
    CHECK(pool.may_borrow());
    pool.borrow();
    CHECK(pool.borrowed() == 0); // nothing is spare

    pool.spare_changed(0, 280 * page_bytes + page_bytes / 2);
    pool.borrow();
    CHECK(pool.borrowed() == 280);
    CHECK(pool.free() == own + 280);
    pool.borrow();
    CHECK(pool.borrowed() == 280); // nothing is borrowed twice
    CHECK(pool.may_keep_borrowed(60 * page_bytes, 60 * page_bytes));
    CHECK(pool.may_keep_borrowed(60 * page_bytes, 60 * page_bytes - page_bytes / 2));
    CHECK_FALSE(pool.may_keep_borrowed(60 * page_bytes, 60 * page_bytes - page_bytes / 2 - 1));
    std::vector<std::uint32_t> taken;
    for (std::uint32_t f = pool.pop_free(); f != none; f = pool.pop_free()) {
        REQUIRE(f < own + 280);
        CHECK(pool.bytes(f) == memory->memory().data() + f * page_bytes);
        pool.bytes(f)[0] = std::byte{7};
        taken.push_back(f);
    }
    CHECK(taken.size() == own + 280);
    CHECK(pool.peak() == own); // the others are counted as tables
    for (const std::uint32_t f : taken) pool.settle(f);

    pool.give_all_back();
    CHECK(pool.borrowed() == 0);
    CHECK(pool.free() == own);
    CHECK(pool.bytes(own + 1)[0] == std::byte{0});
    pool.spare_changed(60 * page_bytes, 30 * page_bytes);
    pool.borrow();
    CHECK(pool.borrowed() == 250);
    pool.give_all_back();
    pool.spare_changed(0, 1000 * page_bytes);
    pool.borrow();
    CHECK(pool.borrowed() == most); // more than it has a use for
    pool.give_all_back();
    for (std::uint32_t i = 0; i < own; ++i) REQUIRE(pool.pop_free() < own);
    CHECK(pool.pop_free() == none);
    CHECK((tables.intact() && c.used() <= bytes));
}

TEST_CASE_TEMPLATE("pools that divide their frames anew keep what is in those that stay", Policy, lru, lfu,
                   s3_fifo, fifo_by_lane) {
    using policy_pool = frame_pool<Policy>;
    constexpr std::uint32_t pools = 4, each = 30, unit_pages = 3, tails = 4, running = 64;
    const std::size_t bytes = pools * (policy_pool::table_bytes(each, unit_pages, tails, running) + 64);
    kvtl_test::guarded_bytes tables(bytes), memory(std::size_t{pools} * each * page);
    carver c(tables.memory());
    std::vector<policy_pool> pool(pools);
    pool_division<Policy> division({}, pool, memory.memory(), each, page, unit_pages, tails, running, c);
    REQUIRE(c.used() <= bytes);
    struct unit {
        std::uint32_t pool, first, pages, number;
        bool is_tail;
    };
    std::vector<unit> units; // in the order in which they came
    oracle::generator rng(5);
    std::uint32_t number = 0, moved = 0;
    const auto fill = [&](policy_pool& p, std::uint32_t f, std::uint32_t with) {
        std::memset(p.bytes(f), static_cast<int>(with % 251 + 1), page);
    };
    const auto holds = [&](const policy_pool& p, std::uint32_t f, std::uint32_t with) {
        return std::all_of(p.bytes(f), p.bytes(f) + page,
                           [&](std::byte b) { return b == std::byte(with % 251 + 1); });
    };
    for (int round = 0; round < 60; ++round) {
        for (std::uint32_t i = 0; i < pools; ++i) { // new units, of one to three pages, and tails
            for (std::uint64_t some = rng.below(6); some > 0; --some) {
                policy_pool& p = pool[i];
                const auto pages = 1 + static_cast<std::uint32_t>(rng.below(unit_pages));
                const bool is_tail = rng.below(4) == 0 && p.tail_count() < tails;
                if (p.free() < pages) break;
                std::uint32_t chain = none;
                for (std::uint32_t n = 0; n < (is_tail ? 1 : pages); ++n) {
                    const std::uint32_t f = p.pop_free();
                    fill(p, f, number);
                    p[f].lane = i, p[f].unit = number;
                    p[f].next = chain;
                    if (!is_tail) p.link(f);
                    chain = f;
                }
                if (is_tail) {
                    p.mark_dirty(chain);
                    std::memset(p.running(chain), static_cast<int>(number % 200), running);
                } else {
                    p.replacement().admit(chain, {pages, false, i, number});
                    p[chain].admitted = true;
                }
                units.push_back({i, chain, is_tail ? 1 : pages, number++, is_tail});
            }
        }
        std::uint32_t left = pools * each;
        std::vector<pool_part> part(pools);
        for (std::uint32_t i = 0; i < pools; ++i) {
            const bool gone = rng.below(4) == 0;
            part[i].own = i + 1 == pools ? left : gone ? 0 : static_cast<std::uint32_t>(rng.below(left + 1));
            part[i].there = part[i].own - static_cast<std::uint32_t>(rng.below(part[i].own / 4 + 1));
            left -= part[i].own;
        }
        for (std::uint32_t i = 0; i < pools; ++i) { // as a store does before
            policy_pool& p = pool[i];
            const std::uint32_t kept = std::min(p.there(), part[i].there);
            std::erase_if(units, [&](const unit& u) {
                if (u.pool != i) return false;
                bool leaves = false;
                for (std::uint32_t f = u.first; f != none; f = p[f].next) leaves = leaves || f >= kept;
                if (!leaves) return false;
                if (!u.is_tail) p.replacement().remove(u.first);
                for (std::uint32_t f = u.first; f != none;) {
                    const std::uint32_t next = p[f].next;
                    if (u.is_tail)
                        p.clear_dirty(f), p.settle(f);
                    else
                        p.unlink(f);
                    f = next;
                }
                return true;
            });
            p.limit(kept);
        }
        const std::byte* const before = pool[1].bytes(0);
        division.divide([&](std::size_t i) { return part[i]; });
        moved += pool[1].bytes(0) != before ? 1 : 0;
        std::vector<std::uint32_t> used(pools);
        for (const unit& u : units) {
            policy_pool& p = pool[u.pool];
            std::uint32_t n = 0;
            for (std::uint32_t f = u.first; f != none; f = p[f].next, ++n) {
                REQUIRE(holds(p, f, u.number));
                REQUIRE(p[f].unit == u.number);
                REQUIRE(p[f].linked != u.is_tail);
            }
            REQUIRE(n == u.pages);
            used[u.pool] += n;
            if (u.is_tail) REQUIRE(p.running(u.first)[running - 1] == std::byte(u.number % 200));
        }
        for (std::uint32_t i = 0; i < pools; ++i) {
            const policy_pool& p = pool[i];
            REQUIRE(p.own() == part[i].own);
            REQUIRE(p.there() == part[i].there);
            REQUIRE(p.in_use() == used[i]);
            REQUIRE(p.free() == p.there() - used[i]);
            REQUIRE((i == 0 ? memory.memory().data()
                            : pool[i - 1].memory_away().data() + pool[i - 1].memory_away().size()) ==
                    p.bytes(0));
        }
        if (std::is_same_v<Policy, lru>) // who came first still leaves first
            for (std::uint32_t i = 0; i < pools; ++i) {
                const auto oldest = std::find_if(units.begin(), units.end(),
                                                 [&](const unit& u) { return u.pool == i && !u.is_tail; });
                REQUIRE(pool[i].victim(0) == (oldest == units.end() ? none : oldest->first));
            }
    }
    CHECK(moved > 30);
    CHECK(number > 200);
    CHECK(tables.intact());
    CHECK(memory.intact());
}

} // namespace core_store_frame_pool_test
