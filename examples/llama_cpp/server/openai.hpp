// Requests and responses in the form of OpenAI's interface: https://platform.openai.com/docs/api-reference, completions and
// chat completions.
//
// Errors: what cannot be done is an api_error, whose sentence names the field, its value and what is valid. Fields that are
//         unknown are ignored. Known ones that would change the answer and cannot be followed are refused.
// SPDX-License-Identifier: MIT
#pragma once

#include "job.hpp"
#include "served_model.hpp"

#include <nlohmann/json.hpp>

#include <stdexcept>
#include <string>
#include <string_view>

namespace kvtl_server {

using json = nlohmann::ordered_json;

struct api_error : std::runtime_error {
    api_error(int http_status, const std::string& sentence, std::string field = "",
              std::string short_code = "")
        : std::runtime_error(sentence), status(http_status), param(std::move(field)),
          code(std::move(short_code)) {}
    int status;
    std::string param; ///< the field; "" for none
    std::string code;  ///< "" for none
};

/// Bytes that are no UTF-8, which a model may generate or a file may be named with, become U+FFFD.
[[nodiscard]] std::string dump(const json& j);

/// {"error":{"message","type","param","code"}}
[[nodiscard]] std::string error_body(const api_error& e);

/// The body of a request. Throws api_error unless it is a JSON object of bounded depth, with few keys in each object. Cost: linear.
[[nodiscard]] json parse_body(const std::string& body);

struct completion_request {
    bool chat = false;
    bool stream = false;
    bool include_usage = false; ///< of a stream: a last chunk with the usage
    generation what;            ///< without its space
};

/// Throws api_error.
[[nodiscard]] completion_request parse_completion(const json& body, bool chat, const served_model& m);

/// {"content","add_special"}, as llama-server takes it, to {"tokens"}. Throws api_error.
[[nodiscard]] json tokenize(const json& body, const served_model& m);

[[nodiscard]] json list_of_models(const served_model& m);

/// What is said about one answer, whole or in chunks.
class completion_writer {
  public:
    completion_writer(const completion_request& r, const served_model& m);

    [[nodiscard]] std::string whole(const std::string& text, const job& ended) const;
    /// The events of a stream, each with its "data: ".
    [[nodiscard]] std::string first() const;
    [[nodiscard]] std::string piece(const std::string& text) const;
    [[nodiscard]] std::string last(const job& ended) const;

  private:
    [[nodiscard]] json head(bool chunk) const;
    [[nodiscard]] std::string event(json choice) const;

    bool chat_, include_usage_;
    std::string id_, model_;
    std::time_t created_;
};

} // namespace kvtl_server
