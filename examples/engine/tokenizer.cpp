// SPDX-License-Identifier: MIT
#include "tokenizer.hpp"

#include "unicode.hpp"

#include <algorithm>
#include <limits>
#include <queue>

namespace engine {

namespace {

constexpr std::string_view space_mark = "\xE2\x96\x81"; // U+2581, SentencePiece's visible space
constexpr double no_rank = std::numeric_limits<double>::infinity();

/// Joins neighbours of `text`, cut into code points, until no pair has a rank: the lowest rank first, the
/// leftmost among equals. `rank(left, right)` is called with views of adjacent parts.
template <class Rank> std::vector<std::string_view> merge_pairs(std::string_view text, const Rank& rank) {
    constexpr auto none = std::numeric_limits<std::size_t>::max();
    struct part {
        std::string_view text; // empty once it was joined to its left neighbour
        std::size_t left;
        std::size_t right;
    };
    struct pair {
        double rank;
        std::size_t left;
        std::size_t bytes; // of both parts when the pair was queued: if it has changed, the pair is outdated
        bool operator<(const pair& other) const { // the queue puts the greatest on top
            return rank != other.rank ? rank > other.rank : left > other.left;
        }
    };
    std::vector<part> parts;
    for (std::size_t i = 0; i < text.size();) {
        const std::size_t n = first_code_point(text.substr(i)).bytes;
        const std::size_t index = parts.size();
        parts.push_back({text.substr(i, n), index == 0 ? none : index - 1, index + 1});
        i += n;
    }
    if (parts.empty()) return {};
    parts.back().right = none;

    std::priority_queue<pair> queue;
    const auto enqueue = [&](std::size_t left) {
        const std::size_t right = left == none ? none : parts[left].right;
        if (right == none) return;
        const double r = rank(parts[left].text, parts[right].text);
        if (r < no_rank) queue.push({r, left, parts[left].text.size() + parts[right].text.size()});
    };
    for (std::size_t i = 0; i < parts.size(); ++i) enqueue(i);
    while (!queue.empty()) {
        const pair best = queue.top();
        queue.pop();
        part& left = parts[best.left];
        if (left.text.empty() || left.right == none) continue;
        part& right = parts[left.right];
        if (left.text.size() + right.text.size() != best.bytes) continue;
        left.text = {left.text.data(), best.bytes};
        right.text = {};
        left.right = right.right;
        if (left.right != none) parts[left.right].left = best.left;
        enqueue(left.left);
        enqueue(best.left);
    }
    std::vector<std::string_view> merged;
    for (std::size_t i = 0; i != none; i = parts[i].right) merged.push_back(parts[i].text);
    return merged;
}

/// The byte of "<0x0A>", or -1.
int byte_value(std::string_view token) {
    const auto digit = [](char c) {
        return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
    };
    if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
    const int high = digit(token[3]);
    const int low = digit(token[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

} // namespace

tokenizer::tokenizer(const gguf_file& file) {
    tokens_ = file.strings("tokenizer.ggml.tokens");
    kinds_.assign(tokens_.size(), kind::normal);
    if (file.has("tokenizer.ggml.token_type")) {
        const auto types = file.numbers("tokenizer.ggml.token_type");
        if (types.size() != tokens_.size())
            file.reject("tokenizer.ggml.token_type has another length than the tokens");
        for (std::size_t i = 0; i < types.size(); ++i)
            if (types[i] >= 1 && types[i] <= 6) kinds_[i] = static_cast<kind>(types[i]);
    }
    byte_ids_.fill(-1);
    for (std::size_t i = 0; i < tokens_.size(); ++i) {
        const auto id = static_cast<token_id>(i);
        if (kinds_[i] == kind::byte) {
            if (const int byte = byte_value(tokens_[i]); byte >= 0)
                byte_ids_[static_cast<std::size_t>(byte)] = id;
        } else if (kinds_[i] != kind::control && kinds_[i] != kind::unknown) {
            ids_.emplace(tokens_[i], id);
        }
        if ((kinds_[i] == kind::control || kinds_[i] == kind::user_defined) && !tokens_[i].empty())
            special_.push_back(id);
    }
    std::stable_sort(special_.begin(), special_.end(),
                     [&](token_id a, token_id b) { return tokens_[a].size() > tokens_[b].size(); });
    read_family(file);
    read_special(file);
}

void tokenizer::read_family(const gguf_file& file) {
    const auto family = file.string("tokenizer.ggml.model");
    if (family == "llama") {
        scores_ = file.numbers("tokenizer.ggml.scores");
        if (scores_.size() != tokens_.size())
            file.reject("tokenizer.ggml.scores has another length than the tokens");
        space_prefix_ = true;
        return;
    }
    if (family != "gpt2")
        file.reject("tokenizer '" + std::string(family) +
                    "' is not supported; valid: llama (SentencePiece), gpt2 (BPE)");

    byte_level_ = true;
    const auto pre = file.has("tokenizer.ggml.pre") ? file.string("tokenizer.ggml.pre") : "default";
    if (pre == "llama-bpe" || pre == "llama3" || pre == "llama-v3") {
        pattern_ = word_pattern::llama3;
        whole_words_first_ = true;
    } else if (pre == "qwen2") {
        pattern_ = word_pattern::qwen2;
    } else if (pre != "default" && pre != "gpt-2") {
        file.reject("pre-tokenizer '" + std::string(pre) +
                    "' is not supported; valid: llama-bpe, qwen2, gpt-2, default");
    }
    const auto merges = file.strings("tokenizer.ggml.merges");
    for (std::size_t i = 0; i < merges.size(); ++i) merge_rank_.emplace(merges[i], static_cast<double>(i));

    // Bytes that are printable in Latin-1 are written as themselves, the others as U+0100, U+0101, ...
    char32_t next = 0x100;
    for (unsigned byte = 0; byte < 256; ++byte) {
        const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
        const char32_t character = printable ? byte : next++;
        append_utf8(visible_[byte], character);
        byte_of_.emplace(character, static_cast<unsigned char>(byte));
        if (const auto found = ids_.find(visible_[byte]); found != ids_.end())
            byte_ids_[byte] = found->second;
    }
}

void tokenizer::read_special(const gguf_file& file) {
    const auto id = [&](const std::string& name) -> std::int64_t {
        const std::string key = "tokenizer.ggml." + name + "_token_id";
        if (!file.has(key)) return -1;
        const auto value = file.integer(key);
        if (value >= tokens_.size()) file.reject(key + " is beyond the vocabulary");
        return static_cast<std::int64_t>(value);
    };
    const auto flag = [&](const std::string& name, bool otherwise) {
        return file.has("tokenizer.ggml." + name) ? file.flag("tokenizer.ggml." + name) : otherwise;
    };
    // Files that do not say follow the custom of their family.
    const bool with_bos = flag("add_bos_token", !byte_level_ || pattern_ == word_pattern::llama3);
    space_prefix_ = space_prefix_ && flag("add_space_prefix", true);
    bos_ = with_bos ? id("bos") : -1;
    unknown_ = id("unknown");
    for (const char* name : {"eos", "eot", "eom"})
        if (const auto end = id(name); end >= 0) ends_.push_back(static_cast<token_id>(end));
    for (const token_id special : special_)
        for (const char* name : {"<|eot_id|>", "<|im_end|>", "<|end_of_text|>", "<|endoftext|>"})
            if (tokens_[special] == name) ends_.push_back(special);
}

std::vector<token_id> tokenizer::encode(std::string_view text, bool parse_control, bool begin) const {
    std::vector<token_id> out;
    if (begin && bos_ >= 0) out.push_back(static_cast<token_id>(bos_));
    std::size_t first = 0; // of the ordinary text that has not been encoded yet
    for (std::size_t i = 0; i < text.size(); ++i) {
        const auto here = [&](token_id id) {
            return (parse_control || kinds_[id] == kind::user_defined) &&
                   text.substr(i).starts_with(tokens_[id]);
        };
        const auto found = std::find_if(special_.begin(), special_.end(), here);
        if (found == special_.end()) continue;
        encode_fragment(text.substr(first, i - first), out);
        out.push_back(*found);
        first = i + tokens_[*found].size();
        i = first - 1;
    }
    encode_fragment(text.substr(first), out);
    return out;
}

void tokenizer::encode_fragment(std::string_view text, std::vector<token_id>& out) const {
    if (text.empty()) return;
    if (byte_level_)
        encode_byte_level(text, out);
    else
        encode_sentencepiece(text, out);
}

void tokenizer::put_bytes(std::string_view text, std::vector<token_id>& out) const {
    for (const char c : text) {
        const auto id = byte_ids_[static_cast<unsigned char>(c)];
        if (id >= 0)
            out.push_back(static_cast<token_id>(id));
        else if (unknown_ >= 0)
            out.push_back(static_cast<token_id>(unknown_));
    }
}

void tokenizer::encode_sentencepiece(std::string_view text, std::vector<token_id>& out) const {
    std::string marked(space_prefix_ ? space_mark : "");
    for (const char c : text) {
        if (c == ' ')
            marked += space_mark;
        else
            marked += c;
    }
    // Parts are adjacent in `marked`, so that their concatenation is a view as well.
    const auto rank = [&](std::string_view left, std::string_view right) {
        const auto found = ids_.find({left.data(), left.size() + right.size()});
        return found == ids_.end() ? no_rank : -scores_[found->second];
    };
    for (const auto part : merge_pairs(marked, rank)) {
        const auto found = ids_.find(part);
        if (found != ids_.end())
            out.push_back(found->second);
        else
            put_bytes(part, out);
    }
}

void tokenizer::encode_byte_level(std::string_view text, std::vector<token_id>& out) const {
    std::string key;
    const auto rank = [&](std::string_view left, std::string_view right) {
        key.assign(left);
        key += ' ';
        key += right;
        const auto found = merge_rank_.find(key);
        return found == merge_rank_.end() ? no_rank : found->second;
    };
    std::string word;
    for (const auto raw : split_words(text, pattern_)) {
        word.clear();
        for (const char c : raw) word += visible_[static_cast<unsigned char>(c)];
        if (whole_words_first_) {
            if (const auto found = ids_.find(word); found != ids_.end()) {
                out.push_back(found->second);
                continue;
            }
        }
        for (const auto part : merge_pairs(word, rank)) {
            if (const auto found = ids_.find(part); found != ids_.end()) {
                out.push_back(found->second);
                continue;
            }
            std::string bytes; // a merge without a token: fall back to its bytes
            for (std::size_t i = 0; i < part.size();) {
                const auto c = first_code_point(part.substr(i));
                bytes += static_cast<char>(byte_of_.at(c.value));
                i += c.bytes;
            }
            put_bytes(bytes, out);
        }
    }
}

std::string tokenizer::piece(token_id id) const {
    if (id >= tokens_.size() || kinds_[id] == kind::control) return {};
    const auto token = tokens_[id];
    if (kinds_[id] == kind::byte) {
        const int byte = byte_value(token);
        return byte < 0 ? std::string() : std::string(1, static_cast<char>(byte));
    }
    if (kinds_[id] == kind::user_defined) return std::string(token);
    std::string text;
    for (std::size_t i = 0; i < token.size();) {
        const auto c = first_code_point(token.substr(i));
        const auto raw = token.substr(i, c.bytes);
        if (byte_level_) {
            const auto found = byte_of_.find(c.value);
            if (found == byte_of_.end())
                text += raw;
            else
                text += static_cast<char>(found->second);
        } else if (raw == space_mark) {
            text += ' ';
        } else {
            text += raw;
        }
        i += c.bytes;
    }
    return text;
}

std::string tokenizer::decode(std::span<const token_id> ids) const {
    std::string text;
    for (const auto id : ids) text += piece(id);
    return text;
}

bool tokenizer::is_end(token_id id) const {
    return std::find(ends_.begin(), ends_.end(), id) != ends_.end();
}

} // namespace engine
