// Text to token ids and back, with the vocabulary stored in a GGUF file.
//
// Two families, both byte-pair encodings: `llama` (SentencePiece: whole text, spaces written as U+2581, the
// pair whose concatenation has the best score merges first, what is not in the vocabulary becomes byte
// tokens) and `gpt2` (byte-level: the text is cut into words first, every byte is written as a visible
// character, pairs merge in the order of the file's list). Ties go to the leftmost pair. Cost: O(n log n) per
// SentencePiece text or byte-level word.
// SPDX-License-Identifier: MIT
#pragma once

#include "gguf.hpp"
#include "pretokenizer.hpp"

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace engine {

using token_id = std::uint32_t;

class tokenizer {
  public:
    /// Keeps views into the file, which must outlive it.
    explicit tokenizer(const gguf_file& file);

    /// Begins with BOS where the model wants it, unless the text goes on from another (`begin` false). Control
    /// tokens written out in the text (`<|im_end|>`) become their ids with `parse_control`, and are ordinary text
    /// without.
    [[nodiscard]] std::vector<token_id> encode(std::string_view text, bool parse_control = false,
                                               bool begin = true) const;

    /// The bytes a token stands for; a control token has none. One character may span several tokens.
    [[nodiscard]] std::string piece(token_id id) const;
    [[nodiscard]] std::string decode(std::span<const token_id> ids) const;

    /// True for the tokens that end a text or a turn.
    [[nodiscard]] bool is_end(token_id id) const;
    [[nodiscard]] std::size_t size() const noexcept { return tokens_.size(); }

  private:
    enum class kind : std::uint8_t {
        normal = 1,
        unknown = 2,
        control = 3,
        user_defined = 4,
        unused = 5,
        byte = 6
    };

    void encode_fragment(std::string_view text, std::vector<token_id>& out) const;
    void encode_sentencepiece(std::string_view text, std::vector<token_id>& out) const;
    void encode_byte_level(std::string_view text, std::vector<token_id>& out) const;
    void put_bytes(std::string_view text, std::vector<token_id>& out) const;
    void read_family(const gguf_file& file);
    void read_special(const gguf_file& file);

    std::vector<std::string_view> tokens_;
    std::vector<double> scores_;
    std::vector<kind> kinds_;
    std::unordered_map<std::string_view, token_id> ids_; ///< without control and byte tokens
    std::unordered_map<std::string_view, double>
        merge_rank_;                         ///< byte-level: "left right" -> position in the list
    std::array<std::int64_t, 256> byte_ids_; ///< token of a single byte, or -1
    std::unordered_map<char32_t, unsigned char> byte_of_; ///< byte-level: visible character -> byte
    std::array<std::string, 256> visible_;                ///< byte-level: byte -> visible character
    std::vector<token_id> special_;                       ///< found in the text as a whole, longest first
    std::vector<token_id> ends_;
    std::int64_t bos_ = -1;
    std::int64_t unknown_ = -1;
    bool byte_level_ = false;
    bool whole_words_first_ = false; ///< llama3: a word that is a token is not merged
    bool space_prefix_ = false;
    word_pattern pattern_ = word_pattern::gpt2;
};

} // namespace engine
