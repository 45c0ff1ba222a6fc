// How the records of entries lie in a page (slots/compressor.hpp says what a record is).
//
// Records of one size: keys first, then values at a fixed offset. Entry i of a unit lies in its page i / rows
// at row i % rows. Pages of one field hold records of values only, or of keys only, without a gap. Where several
// entries share a record (their granule) rows are whole granules.
//
//   page  [ K record 0 | K record 1 | ... | pad | V record 0 | V record 1 | ... ]
//
// Ragged records: a header of offsets grows from the front, records grow from the end, and the page is full
// when they would meet. It says itself how many entries it has.
//
//   page  [ entries, lowest | K at 0, V at 0 | K at 1, V at 1 | ... pad ... | K 1 | V 1 | K 0 | V 0 ]
//
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/slots/compressor.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace kvtl { inline namespace v0 {

struct page_format {
    std::uint32_t page_bytes = 0;   ///< a multiple of the device page
    std::uint32_t rows = 0;         ///< entries per page, at least 1 granule; ragged: that always fit
    record_bytes record{};          ///< bytes of the records of a granule; ragged: at most
    std::uint32_t value_offset = 0; ///< bytes from the page's start to V record 0, a multiple of 64
    bool ragged = false;
    std::uint32_t granule = 1; ///< entries of a record

    static constexpr std::uint32_t line = 64; ///< records of values start on a cache line

    /// The format for records of these sizes on a device with pages of `device_page` bytes. Entries longer
    /// than a device page take as few device pages as hold one.
    [[nodiscard]] static constexpr page_format make(std::uint32_t device_page, record_bytes b,
                                                    bool is_ragged = false,
                                                    std::uint32_t granule = 1) noexcept {
        page_format f;
        f.record = b;
        f.ragged = is_ragged;
        f.granule = granule;
        f.page_bytes = device_page;
        if (is_ragged) {
            while (f.page_bytes < header_bytes(1) + b.entry()) f.page_bytes += device_page;
            f.rows = (f.page_bytes - header_bytes(0)) / (slot_bytes + b.entry());
            return f;
        }
        while (f.page_bytes < round_up(b.key) + b.value) f.page_bytes += device_page;
        std::uint32_t records = f.page_bytes / b.entry();
        while (round_up(records * b.key) + records * b.value > f.page_bytes) --records;
        f.rows = records * granule;
        f.value_offset = round_up(records * b.key);
        return f;
    }

    /// The format of a buffer for `count` entries that is no page.
    [[nodiscard]] static constexpr page_format
    packed(record_bytes b, std::uint32_t count, bool is_ragged = false, std::uint32_t granule = 1) noexcept {
        if (is_ragged) return {round_up(header_bytes(count) + count * b.entry()), count, b, 0, true};
        const std::uint32_t records = (count + granule - 1) / granule, keys = round_up(records * b.key);
        return {keys + round_up(records * b.value), count, b, keys, false, granule};
    }
    /// Ragged: bytes of a buffer for `count` entries whose records take `bytes` in all.
    [[nodiscard]] static constexpr std::uint32_t ragged_bytes(std::uint32_t count,
                                                              std::uint32_t bytes) noexcept {
        return header_bytes(count) + bytes;
    }
    /// Ragged: the same format for a shorter buffer.
    [[nodiscard]] constexpr page_format shortened(std::uint32_t bytes) const noexcept {
        page_format f = *this;
        f.page_bytes = bytes;
        return f;
    }
    /// The format of pages that hold values only.
    [[nodiscard]] static constexpr page_format values_only(std::uint32_t device_page, record_bytes b,
                                                           std::uint32_t granule = 1) noexcept {
        page_format f;
        f.record = {0, b.value};
        f.granule = granule;
        f.page_bytes = device_page;
        while (f.page_bytes < b.value) f.page_bytes += device_page;
        f.rows = f.page_bytes / b.value * granule;
        return f;
    }

    /// The format of pages that hold either keys or values: an entry has a record in one of each. key() and
    /// value() are then the same place.
    [[nodiscard]] static constexpr page_format split(std::uint32_t device_page, record_bytes b,
                                                     std::uint32_t granule = 1) noexcept {
        const std::uint32_t longer = std::max(b.key, b.value);
        page_format f = values_only(device_page, {longer, longer}, granule);
        f.record = b;
        return f;
    }

    /// Pages that so many entries fill; ragged: at most.
    [[nodiscard]] std::uint32_t pages_for(std::uint32_t entries) const noexcept {
        return (entries + rows - 1) / rows;
    }
    /// Records of so many entries, which are whole granules; or the record in which row `entries` is.
    [[nodiscard]] std::size_t records_of(std::uint32_t entries) const noexcept {
        return granule == 1 ? entries : entries / granule;
    }
    /// Bytes of so many entries on storage; ragged: at most.
    [[nodiscard]] std::size_t bytes_of(std::uint32_t entries) const noexcept {
        return records_of(entries) * record.entry();
    }

    // ------------------------------------------------------------------------------------------ reading
    /// Entries in a page of which `left` entries of a unit are still to come.
    [[nodiscard]] std::uint32_t entries_in(const std::byte* page, std::uint32_t left) const noexcept {
        return ragged ? head(page).entries : std::min(left, rows);
    }
    /// Records of entries [first, first + count) of a page.
    [[nodiscard]] records_view keys(const std::byte* page, std::uint32_t first,
                                    std::uint32_t count) const noexcept {
        if (ragged) return {page, count, 0, &slots(page)[first].key};
        return {page + records_of(first) * record.key, count, record.key, nullptr, granule};
    }
    [[nodiscard]] records_view values(const std::byte* page, std::uint32_t first,
                                      std::uint32_t count) const noexcept {
        if (ragged) return {page, count, 0, &slots(page)[first].value};
        return {page + value_offset + records_of(first) * record.value, count, record.value, nullptr,
                granule};
    }
    [[nodiscard]] entry_record entry(const std::byte* page, std::uint32_t row) const noexcept {
        if (!ragged) return {key(page, row), value(page, row), record};
        const slot at = slots(page)[row];
        const std::uint32_t end = row == 0 ? page_bytes : slots(page)[row - 1].key;
        return {page + at.key, page + at.value, {at.value - at.key, end - at.value}};
    }
    /// Records of one size: where that of row `row` lies.
    [[nodiscard]] std::byte* key(std::byte* page, std::uint32_t row) const noexcept {
        return page + records_of(row) * record.key;
    }
    [[nodiscard]] std::byte* value(std::byte* page, std::uint32_t row) const noexcept {
        return page + value_offset + records_of(row) * record.value;
    }
    [[nodiscard]] const std::byte* key(const std::byte* page, std::uint32_t row) const noexcept {
        return page + records_of(row) * record.key;
    }
    [[nodiscard]] const std::byte* value(const std::byte* page, std::uint32_t row) const noexcept {
        return page + value_offset + records_of(row) * record.value;
    }

    // ------------------------------------------------------------------------------------------ writing
    /// A page without entries; what its bytes were does not matter.
    void begin(std::byte* page) const noexcept {
        if (ragged) store_head(page, {0, page_bytes});
    }
    /// Whether a page with `used` entries has room for one of these sizes.
    [[nodiscard]] bool takes(const std::byte* page, std::uint32_t used, record_bytes b) const noexcept {
        return ragged ? fits(room(page), b) : used < rows;
    }
    /// Ragged: bytes that no entry of a page uses, and whether so many are enough for one more entry.
    [[nodiscard]] std::uint32_t room(const std::byte* page) const noexcept {
        const header h = head(page);
        return h.lowest - header_bytes(h.entries);
    }
    [[nodiscard]] static bool fits(std::uint32_t room, record_bytes b) noexcept {
        return slot_bytes + b.entry() <= room;
    }
    /// Row of the next entry in a unit's last page, when the unit has `entries`.
    [[nodiscard]] std::uint32_t next_row(const std::byte* page, std::uint32_t entries) const noexcept {
        return ragged ? head(page).entries : entries % rows;
    }
    /// Ragged: counts the pages that entries of given sizes fill, in order.
    struct page_counter {
        std::uint32_t page_bytes = 0, pages = 0, room = 0;
        void add(record_bytes b) noexcept {
            if (!fits(room, b)) ++pages, room = page_bytes - header_bytes(0);
            room -= slot_bytes + b.entry();
        }
    };
    /// Entry `row` of the page, which has room for it; ragged records come in the order of their rows. A record of no
    /// bytes may be nowhere, which memcpy does not allow.
    void put(std::byte* page, std::uint32_t row, const entry_record& e) const noexcept {
        if (!ragged) {
            std::copy_n(e.key, e.bytes.key, key(page, row));
            std::copy_n(e.value, e.bytes.value, value(page, row));
            return;
        }
        header h = head(page);
        slot at{};
        at.value = h.lowest - e.bytes.value;
        at.key = at.value - e.bytes.key;
        std::copy_n(e.value, e.bytes.value, page + at.value);
        std::copy_n(e.key, e.bytes.key, page + at.key);
        std::memcpy(page + header_bytes(row), &at, sizeof at);
        h = {row + 1, at.key};
        store_head(page, h);
    }

    /// Bytes of the records of a page's first entries.
    [[nodiscard]] std::size_t bytes_in(const std::byte* page, std::uint32_t entries) const noexcept {
        if (!ragged) return bytes_of(entries);
        return entries == 0 ? 0 : page_bytes - slots(page)[entries - 1].key;
    }
    /// Leaves a page its first entries, one at least. `entries`: as many as it has, or fewer.
    void cut(std::byte* page, std::uint32_t entries) const noexcept {
        if (ragged) store_head(page, {entries, slots(page)[entries - 1].key});
    }

    /// Zeroes what no entry uses, so that a page's bytes depend on its entries only. `used`: its entries.
    void pad(std::byte* page, std::uint32_t used) const noexcept {
        if (ragged) {
            const header h = head(page);
            std::memset(page + header_bytes(h.entries), 0, h.lowest - header_bytes(h.entries));
            return;
        }
        const std::size_t keys_end = records_of(used) * record.key;
        const std::size_t values_end = value_offset + records_of(used) * record.value;
        if (value_offset > keys_end) std::memset(page + keys_end, 0, value_offset - keys_end);
        std::memset(page + values_end, 0, page_bytes - values_end);
    }

    /// The same for a page of one field, the keys' or the values'.
    void pad_field(std::byte* page, std::uint32_t used, bool of_keys) const noexcept {
        const std::size_t end = records_of(used) * (of_keys ? record.key : record.value);
        std::memset(page + end, 0, page_bytes - end);
    }

  private:
    struct header {
        std::uint32_t entries, lowest; ///< lowest: where the records begin
    };
    struct slot {
        std::uint32_t key, value; ///< offsets of an entry's records
    };
    static constexpr std::uint32_t slot_bytes = sizeof(slot);

    [[nodiscard]] static constexpr std::uint32_t header_bytes(std::uint32_t entries) noexcept {
        return static_cast<std::uint32_t>(sizeof(header)) + entries * slot_bytes;
    }
    [[nodiscard]] static header head(const std::byte* page) noexcept {
        header h{};
        std::memcpy(&h, page, sizeof h);
        return h;
    }
    static void store_head(std::byte* page, const header& h) noexcept { std::memcpy(page, &h, sizeof h); }
    [[nodiscard]] static const slot* slots(const std::byte* page) noexcept {
        return reinterpret_cast<const slot*>(page + sizeof(header));
    }
    static constexpr std::uint32_t round_up(std::uint32_t bytes) noexcept {
        return (bytes + line - 1) / line * line;
    }
};

}} // namespace kvtl::v0
