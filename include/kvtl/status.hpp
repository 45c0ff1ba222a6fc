// Errors without exceptions. Calls of every step return a `status`, rare calls a `result<T>`.
//
// Cost: an ok status writes one byte and one enum; nothing here allocates except `error`, in rare calls.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/version.hpp>

#include <cassert>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <new>
#include <string>
#include <type_traits>
#include <utility>

namespace kvtl { inline namespace v0 {

/// The kinds of errors. The text of a status or error names the argument, its value and the valid values.
enum class errc : std::uint8_t {
    ok,
    invalid_argument, ///< a shape, a value or an option that can never work
    not_open,         ///< the sequence was ended or never begun
    out_of_range, ///< beyond max_tokens, prefill_tokens, max_sequences or the window; no such layer or shard
    bound_too_small, ///< memory_bytes is less than the preset or a call needs
    unsupported,     ///< the system or the preset cannot do this (no O_DIRECT, no io_uring, missing input)
    file_refused,    ///< foreign or locked file, device or folder; calibration file of another model
    disk_full,       ///< no room for more entries on storage
    io_error,        ///< the device failed a read or a write
    corrupt,         ///< the checksum of a page does not match
    writes_pending,  ///< a background write failed; appends wait for retry_writes()
    busy,            ///< another thread is in a call of the same shard
    absent,          ///< no file of that name, or no section of that kind
};

/// The enumerator as it is spelled: "invalid_argument", "disk_full", ...
[[nodiscard]] constexpr const char* name_of(errc code) noexcept {
    switch (code) {
    case errc::ok:
        return "ok";
    case errc::invalid_argument:
        return "invalid_argument";
    case errc::not_open:
        return "not_open";
    case errc::out_of_range:
        return "out_of_range";
    case errc::bound_too_small:
        return "bound_too_small";
    case errc::unsupported:
        return "unsupported";
    case errc::file_refused:
        return "file_refused";
    case errc::disk_full:
        return "disk_full";
    case errc::io_error:
        return "io_error";
    case errc::corrupt:
        return "corrupt";
    case errc::writes_pending:
        return "writes_pending";
    case errc::busy:
        return "busy";
    case errc::absent:
        return "absent";
    }
    return "unknown";
}

/// The outcome of a call of every step: a code and, when it is not ok, one line of text held inline (no allocation).
class [[nodiscard]] status {
  public:
    constexpr status() noexcept { text_[0] = '\0'; }

    /// printf-style; the text is cut at 239 characters.
    [[gnu::format(printf, 2, 3)]] static status failure(errc code, const char* format, ...) noexcept {
        status s;
        s.code_ = code;
        std::va_list args;
        va_start(args, format);
        std::vsnprintf(s.text_, sizeof s.text_, format, args);
        va_end(args);
        return s;
    }

    [[nodiscard]] constexpr bool ok() const noexcept { return code_ == errc::ok; }
    [[nodiscard]] constexpr explicit operator bool() const noexcept { return ok(); }
    [[nodiscard]] constexpr errc code() const noexcept { return code_; }
    [[nodiscard]] constexpr const char* what() const noexcept { return text_; }

  private:
    errc code_ = errc::ok;
    char text_[239]; // only the first byte is set while ok
};

/// The error of a rare call. The message may have several lines: one per part if memory_bytes is too small.
struct error {
    errc code = errc::invalid_argument;
    std::string message;

    error(errc c, std::string text) : code(c), message(std::move(text)) {}
    error(const status& s)
        : code(s.code()), message(s.what()) {} // NOLINT: a status is an error in short form
    /// Lets a function that returns a status write `return r.error();`. The text is cut at 239 characters.
    operator status() const noexcept {
        return status::failure(code, "%s", message.c_str());
    } // NOLINT: implicit by design
};

/// A value, or the error that explains its absence. Reading the absent side is undefined, as with a null
/// pointer. T must be nothrow-move-constructible. A result is copyable if T is.
template <class T> class [[nodiscard]] result {
  public:
    result(T value) noexcept : value_(std::move(value)), ok_(true) {}    // NOLINT: implicit by design
    result(kvtl::error e) noexcept : error_(std::move(e)), ok_(false) {} // NOLINT: implicit by design
    result(const status& s) : error_(s), ok_(false) {}                   // NOLINT: implicit by design
    result(result&& other) noexcept : ok_(other.ok_) { take(std::move(other)); }
    result(const result& other) requires std::is_copy_constructible_v<T> : ok_(other.ok_) { take(other); }
    result& operator=(result&& other) noexcept {
        if (this == &other) return *this;
        leave();
        ok_ = other.ok_;
        take(std::move(other));
        return *this;
    }
    result& operator=(const result& other) requires std::is_copy_constructible_v<T> {
        return *this = result(other);
    }
    ~result() { // checked here, where T is complete
        static_assert(std::is_nothrow_move_constructible_v<T>, "[kvtl] result<T>: moving a T must not throw");
        leave();
    }

    [[nodiscard]] bool ok() const noexcept { return ok_; }
    [[nodiscard]] explicit operator bool() const noexcept { return ok_; }
    [[nodiscard]] T& operator*() & noexcept { return value(); }
    [[nodiscard]] const T& operator*() const& noexcept { return value(); }
    [[nodiscard]] T&& operator*() && noexcept { return std::move(value()); }
    [[nodiscard]] T* operator->() noexcept { return &value(); }
    [[nodiscard]] const T* operator->() const noexcept { return &value(); }
    [[nodiscard]] const kvtl::error& error() const noexcept {
        assert(!ok_);
        return error_;
    }

  private:
    [[nodiscard]] T& value() noexcept {
        assert(ok_);
        return value_;
    }
    [[nodiscard]] const T& value() const noexcept {
        assert(ok_);
        return value_;
    }
    /// Constructs the side that `ok_` names from the same side of `other`.
    template <class Other> void take(Other&& other) {
        if (ok_)
            ::new (static_cast<void*>(&value_)) T(std::forward<Other>(other).value_);
        else
            ::new (static_cast<void*>(&error_)) kvtl::error(std::forward<Other>(other).error_);
    }
    void leave() noexcept {
        if (ok_)
            value_.~T();
        else
            error_.~error();
    }

    // Not a std::variant: its instantiations take a twentieth of the compile time of a cache.
    union {
        T value_;
        kvtl::error error_;
    };
    bool ok_;
};

}} // namespace kvtl::v0
