// Calibration files: what policies need that was fitted offline to one model, in sections by kind.
//
//   using kind = calibration_kind;
//   auto file = calibration_file::open(path, shape, {.kinds = kind_bit(kind::joint_adapter), .rank = r});
//   if (!file) return file.error();
//   auto view = file->read(memory.first(file->bytes())); // calibration::load() owns its memory
//   rows_view<f16> a = view->adapter(layer);             // (r, H*D)
//
// The kinds of sections and the format: calibration/format.hpp. In memory a joint adapter is f16, everything else f32.
// Cost:   bytes() is known before anything large is read. A section passes through 64 KiB of stack, so that
//         all of it is checked though only its first directions may be kept.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/calibration/format.hpp>
#include <kvtl/element.hpp>
#include <kvtl/geometry.hpp>
#include <kvtl/reservation.hpp>
#include <kvtl/simd/convert.hpp>
#include <kvtl/simd/dot.hpp>
#include <kvtl/status.hpp>
#include <kvtl/views.hpp>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cerrno>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvtl { inline namespace v0 {

/// What a caller wants of a file. The defaults take everything.
struct calibration_request {
    std::uint32_t kinds = 0; ///< kind_bit()s that must be there
    std::uint32_t optional =
        0;                  ///< those that are read where they are there. Without either: whatever is there
    std::uint32_t rank = 0; ///< directions kept of each adapter or basis; 0: all
    const char* rank_name = "rank"; ///< what errors call that number
    std::uint64_t fingerprint = 0;  ///< of the model; 0 fits every file
};

/// The names of a set of kinds, for errors.
[[nodiscard, gnu::cold]] inline std::string kind_names(std::uint32_t kinds) {
    std::string text;
    for (std::uint32_t k = 0; k < calibration_kinds; ++k)
        if ((kinds >> k & 1U) != 0)
            text += (text.empty() ? "" : ", ") + std::string(calibration_kind_names[k]);
    return text.empty() ? "none" : text;
}

/// A basis that was trained with its gate; n = H*D.
struct gated_basis {
    rows_view<float> project;    ///< (n, n): row j makes coefficient j
    rows_view<float> rebuild;    ///< (n, n): row j is what coefficient j stands for
    rows_view<float> gate;       ///< (n, n): row j makes logit j of the coefficients
    const float* bias = nullptr; ///< (n)
};

/// Reads what is in memory. Asking for a kind that was not loaded is an error of the program.
class calibration_view {
  public:
    calibration_view() = default;

    [[nodiscard]] bool has(calibration_kind k) const noexcept { return at(k).data != nullptr; }
    [[nodiscard]] std::uint32_t rank(calibration_kind k) const noexcept { return at(k).rank; }
    [[nodiscard]] bool pre_rope(calibration_kind k) const noexcept { return at(k).pre_rope; }

    /// (r, H*D): row j is direction j; head h has columns [h*D, (h+1)*D).
    [[nodiscard]] rows_view<f16> adapter(std::uint32_t layer) const noexcept {
        return block_of<f16>(calibration_kind::joint_adapter, layer, 0);
    }
    /// (D, D): row j is direction j.
    [[nodiscard]] rows_view<float> pca_basis(std::uint32_t layer, std::uint32_t head) const noexcept {
        return block(calibration_kind::pca_basis, layer, head);
    }
    [[nodiscard]] rows_view<float> skew_basis(std::uint32_t layer, std::uint32_t head) const noexcept {
        return block(calibration_kind::skew_basis, layer, head);
    }
    /// (r, columns) of any other kind: block `head` of a layer, 0 where heads are joint. nuq_*: one row.
    [[nodiscard]] rows_view<float> basis(calibration_kind k, std::uint32_t layer,
                                         std::uint32_t head) const noexcept {
        return block(k, layer, head);
    }
    [[nodiscard]] gated_basis gated(calibration_kind k, std::uint32_t layer) const noexcept {
        const rows_view<float> all = block(k, layer, 0);
        const std::size_t n = all.dim;
        return {all.slice(0, n), all.slice(n, n), all.slice(2 * n, n), all.row(3 * n)};
    }
    /// gated: the share of coefficients that training aimed at.
    [[nodiscard]] float rate(calibration_kind k) const noexcept { return at(k).rate; }
    /// Refuses bases of which what rebuilds does not invert what projects: their second half the first of gated ones,
    /// their transpose any others. Two rows of pseudo-random numbers between -1 and 1 tell.
    /// Cost: 4 n^2 multiply-adds per basis.
    [[nodiscard, gnu::cold]] status check_inverse(calibration_kind k) const {
        const section& s = at(k);
        const std::size_t n = s.extents.columns;
        std::vector<float> x(n), c(n), back(n);
        std::uint32_t random = 1;
        for (std::uint32_t i = 0; i < 2 * s.extents.layers * s.extents.blocks; ++i) {
            const auto layer = i / 2 / static_cast<std::uint32_t>(s.extents.blocks),
                       head = i / 2 % static_cast<std::uint32_t>(s.extents.blocks);
            const rows_view<float> all = block(k, layer, head), project = all.slice(0, n),
                                   rebuild = all.count > n ? all.slice(n, n) : project;
            for (float& v : x) {
                random = random * 1664525U + 1013904223U;
                v = static_cast<float>(random >> 8) / (1 << 23) - 1;
            }
            simd::dot_rows(x.data(), project, c.data());
            std::fill(back.begin(), back.end(), 0.0F);
            for (std::size_t j = 0; j < n; ++j)
                for (std::size_t d = 0; d < n; ++d) back[d] += c[j] * rebuild.row(j)[d];
            float off = 0;
            for (std::size_t d = 0; d < n; ++d) off = std::max(off, std::fabs(back[d] - x[d]));
            if (!(off <= 1e-2F))
                return status::failure(
                    errc::file_refused,
                    "calibration: %s of layer %u, head %u: what rebuilds is off by %g from the "
                    "inverse of what projects; valid: up to 0.01",
                    kind_name(k).data(), layer, head, static_cast<double>(off));
        }
        return {};
    }
    [[nodiscard]] std::size_t layers(calibration_kind k) const noexcept { return at(k).extents.layers; }
    /// Bases per layer.
    [[nodiscard]] std::size_t heads(calibration_kind k) const noexcept { return at(k).extents.blocks; }
    /// (HQ*D, HQ*D), layer >= 1: row j dot the query of layer - 1 is element j of the query of `layer`.
    [[nodiscard]] rows_view<float> query_map(std::uint32_t layer) const noexcept {
        return block(calibration_kind::query_map, layer - 1, 0);
    }
    /// (n) numbers below D/2.
    [[nodiscard]] std::span<const std::uint32_t> channels(std::uint32_t layer,
                                                          std::uint32_t head) const noexcept {
        const section& s = at(calibration_kind::channels);
        return {reinterpret_cast<const std::uint32_t*>(s.data) +
                    (layer * s.extents.blocks + head) * s.extents.columns,
                s.rank};
    }
    /// What pair_elements() needs to know about the model.
    [[nodiscard]] std::uint32_t pair_distance() const noexcept {
        return at(calibration_kind::channels).pair_distance;
    }

  private:
    friend class calibration_file;
    struct section {
        const std::byte* data = nullptr;
        calibration_extents extents{};
        std::uint32_t rank = 0;
        bool pre_rope = false;
        std::uint32_t pair_distance = 1;
        float rate = 0;
    };
    [[nodiscard]] const section& at(calibration_kind k) const noexcept {
        return sections_[static_cast<std::uint32_t>(k)];
    }
    [[nodiscard]] rows_view<float> block(calibration_kind k, std::uint32_t layer,
                                         std::uint32_t head) const noexcept {
        return block_of<float>(k, layer, head);
    }
    template <element E>
    [[nodiscard]] rows_view<E> block_of(calibration_kind k, std::uint32_t layer,
                                        std::uint32_t head) const noexcept {
        assert(held_as_f16(k) == (std::same_as<E, f16>));
        const section& s = at(k);
        const calibration_extents& e = s.extents;
        return {reinterpret_cast<const E*>(s.data) + (layer * e.blocks + head) * e.rows * e.columns, e.rows,
                e.columns, e.columns};
    }

    std::array<section, calibration_kinds> sections_{};
};

/// An open file whose header and table are in order and belong to the caller's model. Move-only.
class calibration_file {
  public:
    calibration_file(const calibration_file&) = delete;
    calibration_file& operator=(const calibration_file&) = delete;
    calibration_file(calibration_file&& o) noexcept
        : path_(std::move(o.path_)), fd_(std::exchange(o.fd_, -1)), header_(o.header_), table_(o.table_),
          kinds_(o.kinds_), rank_(o.rank_) {}
    calibration_file& operator=(calibration_file&& o) noexcept {
        std::swap(path_, o.path_), std::swap(fd_, o.fd_), std::swap(header_, o.header_);
        std::swap(table_, o.table_), std::swap(kinds_, o.kinds_);
        std::swap(rank_, o.rank_);
        return *this;
    }
    ~calibration_file() {
        if (fd_ >= 0) ::close(fd_);
    }

    [[nodiscard]] static result<calibration_file> open(const std::string& path, const shape& model,
                                                       const calibration_request& want = {}) {
        calibration_file f(path);
        std::uint64_t size = 0;
        if (auto e = f.open_regular(size); !e.empty()) return f.refuse(errc::file_refused, e);
        if (auto e = f.read_header(size); e.code != errc::ok) return f.refuse(e.code, e.message);
        if (f.header_.shape != model)
            return f.refuse(errc::file_refused, "was fitted to a model of " + text_of_shape(f.header_.shape) +
                                                    "; this one has " + text_of_shape(model));
        if (want.fingerprint != 0 && want.fingerprint != f.header_.fingerprint)
            return f.refuse(errc::file_refused,
                            "was fitted to another model of the same shape: fingerprint " +
                                hex(f.header_.fingerprint) + " there and " + hex(want.fingerprint) + " here");
        std::uint32_t present = 0;
        for (const calibration_section& s : f.sections()) present |= kind_bit(s.kind);
        if ((want.kinds & ~present) != 0)
            return f.refuse(errc::file_refused, "has no section " + kind_names(want.kinds & ~present) +
                                                    "; it has " + kind_names(present));
        const std::uint32_t wanted = want.kinds | want.optional;
        f.kinds_ = wanted != 0 ? wanted & present : present;
        f.rank_ = want.rank;
        for (const calibration_section& s : f.sections())
            if (f.wants(s) && calibration_extents::has_directions(s.kind) && s.rank < want.rank)
                return f.refuse(errc::file_refused,
                                "has " + std::to_string(s.rank) + " directions in section " +
                                    std::string(kind_name(s.kind)) + "; " + want.rank_name + " wants " +
                                    std::to_string(want.rank));
        return f;
    }

    [[nodiscard]] const calibration_header& header() const noexcept { return header_; }
    [[nodiscard]] std::span<const calibration_section> sections() const noexcept {
        return {table_.data(), header_.sections};
    }
    /// Memory that read() fills.
    [[nodiscard]] std::size_t bytes() const noexcept {
        std::size_t sum = 0;
        for (const calibration_section& s : sections())
            if (wants(s)) sum += kept(s).memory_bytes(s.kind);
        return sum;
    }
    /// `memory` holds bytes() bytes, aligned to 4, and must outlive the view.
    [[nodiscard]] result<calibration_view> read(std::span<std::byte> memory) const {
        calibration_view view;
        for (const calibration_section& s : sections()) {
            if (!wants(s)) continue;
            const calibration_extents extents = kept(s);
            const std::span<std::byte> part = memory.first(extents.memory_bytes(s.kind));
            memory = memory.subspan(part.size());
            std::uint32_t sum = 0;
            if (!read_section(s, part, sum))
                return refuse(errc::io_error, "cannot be read: " + std::string(std::strerror(errno)));
            if (sum != s.checksum)
                return refuse(errc::corrupt, "is damaged: section " + std::string(kind_name(s.kind)) +
                                                 " has another checksum");
            if (s.kind == calibration_kind::channels && !are_pairs(part, header_.shape.head_dim / 2))
                return refuse(errc::corrupt, "is damaged: section channels names a pair beyond D/2");
            if (s.kind != calibration_kind::channels && !all_finite(s.kind, part, extents.numbers()))
                return refuse(errc::corrupt, "is damaged: section " + std::string(kind_name(s.kind)) +
                                                 " holds a value that is not finite" +
                                                 (held_as_f16(s.kind) ? " or beyond 65504" : ""));
            const bool cut = calibration_extents::has_directions(s.kind) && rank_ != 0;
            view.sections_[static_cast<std::uint32_t>(s.kind)] = {
                part.data(), extents, cut ? rank_ : s.rank, s.pre_rope != 0, s.pair_distance, s.rate};
        }
        return view;
    }

  private:
    struct verdict {
        errc code = errc::ok;
        std::string message;
    };

    explicit calibration_file(std::string path) : path_(std::move(path)) {}

    [[nodiscard]] error refuse(errc code, const std::string& why) const {
        return {code, "calibration file " + path_ + " " + why};
    }
    /// Empty, or why not.
    [[nodiscard]] std::string open_regular(std::uint64_t& size) {
        fd_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); // a FIFO must not make us wait
        if (fd_ < 0) return std::string("cannot be opened: ") + std::strerror(errno);
        struct stat info = {};
        if (::fstat(fd_, &info) != 0) return std::string("cannot be opened: ") + std::strerror(errno);
        if (!S_ISREG(info.st_mode)) return "is not a regular file";
        size = static_cast<std::uint64_t>(info.st_size);
        return {};
    }
    [[nodiscard]] bool wants(const calibration_section& s) const noexcept {
        return (kinds_ & kind_bit(s.kind)) != 0;
    }
    /// The extents of what read() keeps of a section.
    [[nodiscard]] calibration_extents kept(const calibration_section& s) const noexcept {
        auto e = calibration_extents::of(s.kind, header_.shape, s.rank);
        if (calibration_extents::has_directions(s.kind) && rank_ != 0) e.rows = rank_;
        return e;
    }
    /// Puts the first rows of every block side by side into `to`, as memory has this kind, and sums up all of the section.
    [[nodiscard]] bool read_section(const calibration_section& s, std::span<std::byte> to,
                                    std::uint32_t& sum) const noexcept {
        const auto whole = calibration_extents::of(s.kind, header_.shape, s.rank);
        const std::uint64_t block = whole.rows * whole.columns * 4;
        const std::uint64_t wanted = kept(s).rows * whole.columns * 4;
        std::fill(to.begin(), to.end(), std::byte{0}); // the padding
        alignas(64) std::array<std::byte, calibration_piece> piece;
        for (std::uint64_t at = 0; at < s.bytes; at += piece.size()) {
            const auto bytes = std::span(piece).first(std::min<std::uint64_t>(piece.size(), s.bytes - at));
            if (!read_fully(bytes, s.offset + at)) return false;
            sum = add_piece(sum, bytes);
            const std::uint64_t end = std::min(at + bytes.size(), whole.numbers() * 4);
            for (std::uint64_t i = at; i < end;) {
                const std::uint64_t inside = i % block;
                const std::uint64_t next = std::min(end, i - inside + block);
                if (inside < wanted)
                    keep(s.kind, to, i / block * wanted + inside,
                         bytes.subspan(i - at, std::min(next - i, wanted - inside)));
                i = next;
            }
        }
        return true;
    }
    /// `bytes` of f32, number `at / 4` and what follows of what is kept.
    static void keep(calibration_kind k, std::span<std::byte> to, std::uint64_t at,
                     std::span<const std::byte> bytes) noexcept {
        if (held_as_f16(k))
            simd::encode(reinterpret_cast<const float*>(bytes.data()),
                         reinterpret_cast<f16*>(to.data()) + at / 4, bytes.size() / 4);
        else
            std::memcpy(to.data() + at, bytes.data(), bytes.size());
    }
    [[nodiscard]] static bool all_finite(calibration_kind k, std::span<const std::byte> part,
                                         std::uint64_t numbers) noexcept {
        return held_as_f16(k) ? simd::all_finite(reinterpret_cast<const f16*>(part.data()), numbers)
                              : simd::all_finite(reinterpret_cast<const float*>(part.data()), numbers);
    }
    [[nodiscard]] verdict read_header(std::uint64_t size) {
        const auto cut = [size](std::uint64_t whole) {
            return verdict{errc::corrupt, "is cut short: " + std::to_string(size) + " of " +
                                              std::to_string(whole) + " bytes"};
        };
        std::array<std::byte, sizeof header_> bytes{};
        const std::size_t there = std::min<std::uint64_t>(size, bytes.size());
        if (!read_fully(std::span(bytes).first(there), 0))
            return {errc::io_error, std::string("cannot be read: ") + std::strerror(errno)};
        std::memcpy(&header_, bytes.data(), sizeof header_);
        const std::size_t magic = std::min(there, header_.magic.size());
        if (!std::equal(header_.magic.begin(), header_.magic.begin() + static_cast<std::ptrdiff_t>(magic),
                        calibration_header::right_magic.begin()))
            return {errc::file_refused, "is not a calibration file of kvtl"};
        if (there < sizeof header_) return cut(sizeof header_);
        if (header_.version != calibration_format_version)
            return {errc::file_refused, "has format version " + std::to_string(header_.version) +
                                            "; this kvtl reads version " +
                                            std::to_string(calibration_format_version)};
        if (header_.element != 0)
            return {errc::file_refused, "holds values of element type " + std::to_string(header_.element) +
                                            "; this kvtl reads type 0, f32"};
        if (header_.sections > calibration_kinds) return {errc::corrupt, "is damaged: its header"};
        const std::size_t table_bytes = header_.sections * sizeof(calibration_section);
        if (size < sizeof header_ + table_bytes) return cut(sizeof header_ + table_bytes);
        if (!read_fully(std::as_writable_bytes(std::span(table_)).first(table_bytes), sizeof header_))
            return {errc::io_error, std::string("cannot be read: ") + std::strerror(errno)};
        if (checksum_of(header_, table_) != header_.checksum || !table_is_sound())
            return {errc::corrupt, "is damaged: its header or table"};
        if (size < header_.file_bytes) return cut(header_.file_bytes);
        if (size > header_.file_bytes)
            return {errc::corrupt, "is damaged: " + std::to_string(size) + " bytes instead of " +
                                       std::to_string(header_.file_bytes)};
        return {};
    }
    /// One section per kind, each of the size that its kind, rank and the shape give, one behind the other.
    [[nodiscard]] bool table_is_sound() const noexcept {
        std::uint64_t at = sizeof header_ + header_.sections * sizeof(calibration_section);
        std::uint32_t seen = 0;
        for (const calibration_section& s : sections()) {
            if (static_cast<std::uint32_t>(s.kind) >= calibration_kinds || (seen & kind_bit(s.kind)) != 0)
                return false;
            const auto [least, most] = calibration_extents::ranks(s.kind, header_.shape);
            const std::uint64_t bytes = calibration_extents::of(s.kind, header_.shape, s.rank).file_bytes();
            if (s.pair_distance < 1 || s.pair_distance > std::max(header_.shape.head_dim / 2, 1U))
                return false;
            if (s.rank < least || s.rank > most || s.offset != at || s.bytes != bytes) return false;
            seen |= kind_bit(s.kind);
            at += bytes;
        }
        return at == header_.file_bytes;
    }
    [[nodiscard]] bool read_fully(std::span<std::byte> into, std::uint64_t offset) const noexcept {
        while (!into.empty()) {
            const ::ssize_t n = ::pread(fd_, into.data(), into.size(), static_cast<::off_t>(offset));
            if (n < 0 && errno == EINTR) continue;
            if (n == 0) errno = EIO; // the file has become shorter
            if (n <= 0) return false;
            into = into.subspan(static_cast<std::size_t>(n));
            offset += static_cast<std::uint64_t>(n);
        }
        return true;
    }

    /// The one kind whose values are used as indices. The padding is 0.
    [[nodiscard]] static bool are_pairs(std::span<const std::byte> part, std::uint32_t limit) noexcept {
        for (std::size_t at = 0; at < part.size(); at += sizeof limit) {
            std::uint32_t pair = 0;
            std::memcpy(&pair, part.data() + at, sizeof pair);
            if (pair >= limit) return false;
        }
        return true;
    }
    [[nodiscard]] static std::string hex(std::uint64_t x) {
        std::string text(16, '0');
        for (std::size_t i = 16; i-- > 0; x >>= 4) text[i] = "0123456789abcdef"[x & 15];
        return text;
    }
    std::string path_;
    int fd_ = -1;
    calibration_header header_{};
    calibration_table table_{};
    std::uint32_t kinds_ = 0;
    std::uint32_t rank_ = 0;
};

/// A file's content in memory of its own, for programs that do not count it in a cache's reservation.
class calibration {
  public:
    [[nodiscard]] static result<calibration> load(const std::string& path, const shape& model,
                                                  const calibration_request& want = {}) {
        auto file = calibration_file::open(path, model, want);
        if (!file) return file.error();
        auto memory = reservation::make(std::max<std::size_t>(file->bytes(), 1));
        if (!memory) return memory.error();
        auto view = file->read(memory->memory().first(file->bytes()));
        if (!view) return view.error();
        calibration c;
        c.bytes_ = file->bytes();
        c.memory_ = *std::move(memory);
        c.view_ = *view;
        return c;
    }
    [[nodiscard]] const calibration_view& view() const noexcept { return view_; }
    [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

  private:
    reservation memory_;
    calibration_view view_;
    std::size_t bytes_ = 0;
};

}} // namespace kvtl::v0
