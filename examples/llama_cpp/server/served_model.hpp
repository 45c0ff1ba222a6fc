// The model as clients see it: a name, a longest context, and text as tokens.
//
// Threads: any, at once.
// SPDX-License-Identifier: MIT
#pragma once

#include "job.hpp"

#include <ctime>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvtl_server {

class served_model {
  public:
    /// `m` must outlive it. `context`: tokens of a prompt and its answer.
    served_model(const llama_run::loaded_model& m, std::string name, std::size_t context)
        : model_(m), name_(std::move(name)), context_(context), since_(std::time(nullptr)) {}

    [[nodiscard]] const std::string& name() const noexcept { return name_; }
    [[nodiscard]] std::size_t context() const noexcept { return context_; }
    [[nodiscard]] std::size_t vocabulary() const noexcept { return model_.vocabulary(); }
    [[nodiscard]] std::time_t since() const noexcept { return since_; }

    /// A text as a prompt: from its beginning, control tokens read by their names.
    [[nodiscard]] std::vector<token_id> prompt(std::string_view text) const {
        return model_.encode(text, true, true);
    }
    [[nodiscard]] std::vector<token_id> tokens(std::string_view text, bool begin) const {
        return model_.encode(text, begin, true);
    }
    /// Messages by the model's chat template, up to where the answer begins. Without one that llama.cpp has: the texts, a
    /// line for each question, as kvtl-llama -i puts them.
    [[nodiscard]] std::vector<token_id> chat(std::span<const engine::message> messages) const;

  private:
    const llama_run::loaded_model& model_;
    std::string name_;
    std::size_t context_;
    std::time_t since_;
};

} // namespace kvtl_server
