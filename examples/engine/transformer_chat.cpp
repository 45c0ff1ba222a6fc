// SPDX-License-Identifier: MIT
#include "transformer_chat.hpp"

#include "chat_template.hpp"
#include "error.hpp"

#include <utility>

namespace engine {

transformer_chat::transformer_chat(transformer& t, const tokenizer& words, kv_cache& cache,
                                   std::string chat_template, std::size_t max_tokens, std::size_t chunk,
                                   std::uint64_t model)
    : transformer_(t), words_(words), cache_(cache), template_(std::move(chat_template)),
      max_tokens_(max_tokens), chunk_(chunk), model_(model) {}

std::vector<token_id> transformer_chat::encode(std::string_view text, bool begin, bool control) const {
    return words_.encode(text, control, begin);
}

std::optional<std::string> transformer_chat::render(std::span<const message> messages,
                                                    bool for_answer) const {
    return render_chat(template_, messages, for_answer);
}

void transformer_chat::read(std::span<const token_id> tokens, bool last) {
    if (!std::exchange(begun_, true)) transformer_.begin();
    const bool decodes = tokens.size() == 1 && last && transformer_.position() > 0;
    logits_ = decodes ? transformer_.step(tokens.front()) : transformer_.prefill(tokens, nullptr, last);
}

bool transformer_chat::rewind(std::size_t position) {
    try {
        transformer_.rewind(transformer_.position() - position);
        return true;
    } catch (const run_failure&) {
        return false;
    }
}

kvtl::save_facts transformer_chat::save(const std::string& path, std::span<const std::byte> note) {
    const auto saved = cache_.save(transformer_.sequence(), path, {.model = model_, .note = note});
    if (!saved) throw run_failure("--save-state: " + saved.error().message);
    return *saved;
}

kvtl::loaded_sequence transformer_chat::load(const std::string& path) {
    const auto loaded = cache_.load(path, {.model = model_});
    if (!loaded) throw bad_input("--load-state: " + loaded.error().message);
    transformer_.go_on_in(loaded->seq, loaded->tokens);
    begun_ = true;
    return *loaded;
}

} // namespace engine
