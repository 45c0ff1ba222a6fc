// The server's addresses: a page of chats at /, OpenAI's /v1/models, /v1/completions and /v1/chat/completions, and /health, /tokenize, /slots and
// /metrics as llama-server has them.
//
// Errors:  a status of HTTP, and OpenAI's {"error":{...}}. A body is read to its end before the answer, or the connection is
//          closed: what is left of a body is never taken for a request.
// Threads: one per connection, up to `threads` at once. A client that goes away ends its job within a fifth of a second.
// SPDX-License-Identifier: MIT
#pragma once

#include "api_keys.hpp"
#include "metrics.hpp"
#include "scheduler.hpp"
#include "served_model.hpp"

#include <cstddef>
#include <memory>
#include <string>

namespace kvtl_server {

struct http_options {
    std::string host = "127.0.0.1";
    int port = 8080;          ///< 0: the system chooses
    std::size_t max_body = 0; ///< bytes of a request, decoded
    std::size_t threads = 0;
};

/// Whether an address is reached from this machine only.
[[nodiscard]] bool is_loopback(const std::string& host);

/// What requests are answered from.
struct served {
    const api_keys& keys;
    const served_model& model;
    scheduler& work;
    const metrics& counts;
};

class http_api {
  public:
    /// Takes the port. Throws bad_input.
    explicit http_api(const http_options& o);
    ~http_api();
    http_api(const http_api&) = delete;
    http_api& operator=(const http_api&) = delete;

    [[nodiscard]] std::string address() const; ///< http://HOST:PORT

    /// Answers until stop() is called.
    void serve(const served& s);
    /// serve() is called, or will be at once; it returns.
    void stop();

  private:
    struct state;
    std::unique_ptr<state> state_;
};

} // namespace kvtl_server
