// SPDX-License-Identifier: MIT
#include "pretokenizer.hpp"

#include "unicode.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>

namespace engine {

namespace {

struct symbol {
    char32_t value;
    char_class kind;
    std::size_t offset; ///< of its first byte
};

/// Reads one word after the other. Positions count code points; every rule returns the word's length, or 0.
class scanner {
  public:
    scanner(std::string_view text, word_pattern pattern) : gpt2_(pattern == word_pattern::gpt2) {
        digits_ = gpt2_ ? std::numeric_limits<std::size_t>::max() : pattern == word_pattern::qwen2 ? 1 : 3;
        symbols_.reserve(text.size());
        for (std::size_t i = 0; i < text.size();) {
            const auto c = first_code_point(text.substr(i));
            symbols_.push_back({c.value, class_of(c.value), i});
            i += c.bytes;
        }
        end_ = text.size();
    }

    [[nodiscard]] bool done() const { return at_ == symbols_.size(); }

    /// The byte offset behind the next word.
    std::size_t next() {
        std::size_t length = contraction();
        if (length == 0) length = letters();
        if (length == 0) length = numbers();
        if (length == 0) length = others();
        if (length == 0) length = spaces();
        at_ += length;
        return done() ? end_ : symbols_[at_].offset;
    }

  private:
    [[nodiscard]] char32_t value(std::size_t i) const {
        return at_ + i < symbols_.size() ? symbols_[at_ + i].value : 0;
    }
    [[nodiscard]] bool is(std::size_t i, char_class kind) const {
        return at_ + i < symbols_.size() && symbols_[at_ + i].kind == kind;
    }
    [[nodiscard]] bool newline(std::size_t i) const { return value(i) == '\r' || value(i) == '\n'; }
    [[nodiscard]] std::size_t run(std::size_t from, char_class kind) const {
        std::size_t n = 0;
        while (is(from + n, kind)) ++n;
        return n;
    }

    [[nodiscard]] std::size_t contraction() const {
        if (value(0) != '\'') return 0;
        const auto letter = [&](std::size_t i) {
            const char32_t c = value(i);
            return !gpt2_ && c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c;
        };
        const char32_t a = letter(1);
        const char32_t b = letter(2);
        if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
        return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
    }

    /// Letters, with one sign or space before them: only a space for gpt2, anything but a line end for the
    /// others.
    [[nodiscard]] std::size_t letters() const {
        if (is(0, char_class::letter)) return run(0, char_class::letter);
        const bool lead = gpt2_ ? value(0) == ' ' : !newline(0) && !is(0, char_class::number);
        const std::size_t n = lead ? run(1, char_class::letter) : 0;
        return n == 0 ? 0 : n + 1;
    }

    [[nodiscard]] std::size_t numbers() const {
        const std::size_t lead = gpt2_ && value(0) == ' ' ? 1 : 0;
        const std::size_t n = std::min(run(lead, char_class::number), digits_);
        return n == 0 ? 0 : n + lead;
    }

    [[nodiscard]] std::size_t others() const {
        const std::size_t lead = value(0) == ' ' ? 1 : 0;
        std::size_t n = run(lead, char_class::other);
        if (n == 0) return 0;
        n += lead;
        if (!gpt2_)
            while (newline(n)) ++n;
        return n;
    }

    /// A run of spaces ends behind its last line end (not for gpt2); otherwise it leaves its last space to
    /// the word that follows, if there is one and more than one space.
    [[nodiscard]] std::size_t spaces() const {
        const std::size_t n = run(0, char_class::space);
        if (!gpt2_)
            for (std::size_t i = n; i > 0; --i)
                if (newline(i - 1)) return i;
        return n > 1 && at_ + n < symbols_.size() ? n - 1 : n;
    }

    std::vector<symbol> symbols_;
    std::size_t at_ = 0;
    std::size_t end_ = 0;
    std::size_t digits_;
    bool gpt2_;
};

} // namespace

std::vector<std::string_view> split_words(std::string_view text, word_pattern pattern) {
    std::vector<std::string_view> words;
    scanner scan(text, pattern);
    for (std::size_t begin = 0; !scan.done();) {
        const std::size_t end = scan.next();
        words.push_back(text.substr(begin, end - begin));
        begin = end;
    }
    return words;
}

} // namespace engine
