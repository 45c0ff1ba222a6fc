// SPDX-License-Identifier: MIT
#include "http_api.hpp"

#include "error.hpp"
#include "openai.hpp"

#include <httplib.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

namespace kvtl_server {

namespace {

using httplib::Request;
using httplib::Response;

constexpr const char* json_type = "application/json";
constexpr const char* chat_page =
#include "page.inc"
    ;
constexpr std::chrono::milliseconds look_after_client{200};

void put_error(Response& res, const api_error& e) {
    res.status = e.status;
    res.set_content(error_body(e), json_type);
}

/// The errors that httplib finds itself.
api_error error_of(int status, const Request& req, std::size_t max_body) {
    if (status == 404)
        return {404, "there is no " + req.method + " " + req.path +
                         "; valid: GET /, /health, /v1/models, /slots, /metrics; POST /v1/completions, "
                         "/v1/chat/completions, /tokenize"};
    if (status == 413)
        return {413, "the body is too large; valid: up to " + std::to_string(max_body) + " bytes"};
    return {status, "the request is no valid HTTP, or its body was cut off"};
}

/// Ends the connection behind the answer, as what is left of a body would be taken for the next request.
void put_last_error(Response& res, const api_error& e) {
    res.status = e.status;
    res.set_header("Connection", "close");
    const auto body = std::make_shared<const std::string>(error_body(e));
    res.set_content_provider(body->size(), json_type,
                             [body](std::size_t from, std::size_t n, httplib::DataSink& sink) {
                                 sink.write(body->data() + from, n);
                                 return false; // which ends the connection
                             });
}

/// The body of a request, decoded. httplib's own limit holds for Content-Length only, not for chunks and compressed bodies. A
/// body that is a little too large is read to its end, so that its client gets the answer. Null where an answer was put.
std::optional<std::string> read_body(const Request& req, Response& res, const httplib::ContentReader& read,
                                     std::size_t max_body) {
    std::string body;
    std::size_t come = 0;
    const bool whole = read([&](const char* data, std::size_t n) {
        come += n;
        if (come <= max_body) body.append(data, n);
        return come <= 2 * max_body;
    });
    if (whole && come <= max_body) return body;
    const int status = come > max_body ? 413 : res.status;
    const api_error e = error_of(status, req, max_body);
    if (whole || (status == 413 && come == 0)) // httplib has skipped it
        put_error(res, e);
    else
        put_last_error(res, e);
    return std::nullopt;
}

/// A page of another site can post a form to this machine, but no JSON without being asked first.
json body_of(const Request& req, const std::string& body) {
    const std::string type = req.get_header_value("Content-Type");
    if (!type.starts_with(json_type))
        throw api_error(415, "Content-Type is '" + type + "'; valid: application/json");
    return parse_body(body);
}

/// One answer on its way to its client.
struct reply {
    std::shared_ptr<job> what;
    completion_writer writer;
    bool begun = false;
    std::string text; ///< so far, where it goes out as a whole
};

/// Sends what has come. False ends the connection.
bool send_whole(reply& r, httplib::DataSink& sink) {
    const job::news news = r.what->wait(look_after_client);
    if (!sink.is_writable()) return false;
    r.text += news.text;
    if (!news.ended) return true;
    if (const std::string& why = r.what->failure(); !why.empty()) {
        // The status has gone out: the answer says it, and is cut off behind that, so that nobody takes it for a whole one.
        const std::string error = error_body(api_error(500, why));
        sink.write(error.data(), error.size());
        return false;
    }
    const std::string body = r.writer.whole(r.text, *r.what);
    if (!sink.write(body.data(), body.size())) return false;
    sink.done();
    return true;
}

bool send_stream(reply& r, httplib::DataSink& sink) {
    const job::news news = r.what->wait(look_after_client);
    if (!sink.is_writable()) return false;
    std::string events;
    if (!std::exchange(r.begun, true)) events = r.writer.first();
    if (!news.text.empty()) events += r.writer.piece(news.text);
    if (news.ended) events += r.writer.last(*r.what);
    if (!events.empty() && !sink.write(events.data(), events.size())) return false;
    if (news.ended) sink.done();
    return true;
}

void complete(const Request& req, const std::string& body, Response& res, bool chat, const served& s) {
    completion_request asked = parse_completion(body_of(req, body), chat, s.model);
    asked.what.space = api_keys::space_of(req.get_header_value("Authorization"));
    const completion_writer writer(asked, s.model);
    auto submitted = s.work.submit(std::move(asked.what));
    if (!submitted) {
        res.set_header("Retry-After", "1");
        throw api_error(503, "as many requests wait as may, or the server is stopping; valid: later", "",
                        "queue_full");
    }
    const auto r = std::make_shared<reply>(reply{.what = std::move(submitted), .writer = writer, .text = {}});
    const auto gone = [r](bool) { r->what->give_up(); };
    if (asked.stream)
        res.set_chunked_content_provider(
            "text/event-stream", [r](std::size_t, httplib::DataSink& sink) { return send_stream(*r, sink); },
            gone);
    else
        res.set_chunked_content_provider(
            json_type, [r](std::size_t, httplib::DataSink& sink) { return send_whole(*r, sink); }, gone);
}

json slots_of(const served& s) {
    json all = json::array();
    for (const slot_state& slot : s.work.slots())
        all.push_back({{"id", all.size()},
                       {"n_ctx", s.model.context()},
                       {"is_processing", slot.busy},
                       {"tokens", slot.tokens}});
    return all;
}

void put(Response& res, const json& j) {
    res.set_content(dump(j), json_type);
}

/// Who may ask. Throws api_error.
struct gate {
    const served& s;
    bool loopback; ///< the server's own address

    void check(const Request& req) const {
        // A page of another site can have its name mean this machine, and so read answers: its requests carry its name.
        const std::string host = req.get_header_value("Host");
        const std::size_t port = host.find(':', host.starts_with('[') ? host.find(']') : 0);
        const std::string name = host.substr(0, port);
        if (loopback && name != "localhost" && name != "127.0.0.1" && name != "[::1]")
            throw api_error(403, "Host is '" + host + "'; valid: localhost, 127.0.0.1, [::1]");
        const bool open = req.path == "/" || req.path == "/health";
        if (!open && !s.keys.allows(req.get_header_value("Authorization")))
            throw api_error(401, "the key is missing or wrong; valid: Authorization: Bearer KEY", "",
                            "invalid_api_key");
    }
};

/// Before all routes. A POST passes: it is checked when its body was read.
void add_gate(httplib::Server& server, const gate& may) {
    server.set_pre_routing_handler([may](const Request& req, Response& res) {
        if (req.method == "POST") return httplib::Server::HandlerResponse::Unhandled;
        const std::string length = req.get_header_value("Content-Length");
        const bool body = req.has_header("Transfer-Encoding") || (!length.empty() && length != "0");
        try {
            may.check(req);
            if (req.method != "GET" && req.method != "HEAD") throw error_of(404, req, 0);
            if (body) throw api_error(400, req.method + " has a body; valid: none");
        } catch (const api_error& e) {
            if (body)
                put_last_error(res, e);
            else
                put_error(res, e);
            return httplib::Server::HandlerResponse::Handled;
        }
        return httplib::Server::HandlerResponse::Unhandled;
    });
}

void add_pages(httplib::Server& server, const served& s) {
    server.Get("/", [](const Request&, Response& res) {
        res.set_header("Content-Security-Policy", "default-src 'self'; script-src 'unsafe-inline'; style-src "
                                                  "'unsafe-inline'; frame-ancestors 'none'");
        res.set_content(chat_page, "text/html; charset=utf-8");
    });
    server.Get("/health", [&s](const Request&, Response& res) {
        if (s.work.stopping())
            put_error(res, api_error(503, "the server is stopping"));
        else
            put(res, {{"status", "ok"}});
    });
    server.Get("/v1/models", [&s](const Request&, Response& res) { put(res, list_of_models(s.model)); });
    server.Get("/slots", [&s](const Request&, Response& res) { put(res, slots_of(s)); });
    server.Get("/metrics", [&s](const Request&, Response& res) {
        res.set_content(s.counts.text(), "text/plain; version=0.0.4");
    });
}

void add_posts(httplib::Server& server, const served& s, const gate& may, std::size_t max_body) {
    // handle(request, body, response); what throws api_error becomes an answer.
    const auto post = [&](const char* path, const auto& handle) {
        server.Post(path, [=](const Request& req, Response& res, const httplib::ContentReader& read) {
            const std::optional<std::string> body = read_body(req, res, read, max_body);
            if (!body) return;
            try {
                may.check(req);
                handle(req, *body, res);
            } catch (const api_error& e) {
                put_error(res, e);
            }
        });
    };
    post("/tokenize", [&s](const Request& req, const std::string& body, Response& res) {
        put(res, tokenize(body_of(req, body), s.model));
    });
    post("/v1/completions", [&s](const Request& req, const std::string& body, Response& res) {
        complete(req, body, res, false, s);
    });
    post("/v1/chat/completions", [&s](const Request& req, const std::string& body, Response& res) {
        complete(req, body, res, true, s);
    });
    post(".*", [](const Request& req, const std::string&, Response&) { throw error_of(404, req, 0); });
}

} // namespace

struct http_api::state {
    http_options options;
    httplib::Server server;
    int port = 0;
    std::atomic<bool> returned = false; ///< serve()
};

bool is_loopback(const std::string& host) {
    return host == "127.0.0.1" || host == "::1" || host == "localhost";
}

http_api::http_api(const http_options& o) : state_(std::make_unique<state>()) {
    state_->options = o;
    httplib::Server& server = state_->server;
    // httplib would let a second server listen on the same port.
    server.set_socket_options([](auto socket) {
        const int yes = 1;
        ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    });
    errno = 0;
    if (o.port == 0)
        state_->port = server.bind_to_any_port(o.host);
    else
        state_->port = server.bind_to_port(o.host, o.port) ? o.port : -1;
    if (state_->port < 0)
        throw engine::bad_input(
            "cannot listen on " + o.host + " port " + std::to_string(o.port) +
            (errno != 0 ? ": " + std::generic_category().message(errno) : "") +
            "; valid: an address of this machine and a port that is free (--host, --port)");
}

http_api::~http_api() = default;

std::string http_api::address() const {
    const std::string& host = state_->options.host;
    const bool six = host.find(':') != std::string::npos;
    return "http://" + (six ? "[" + host + "]" : host) + ":" + std::to_string(state_->port);
}

void http_api::serve(const served& s) {
    httplib::Server& server = state_->server;
    const http_options& o = state_->options;
    server.new_task_queue = [n = o.threads] { return new httplib::ThreadPool(n); };
    server.set_payload_max_length(o.max_body);
    server.set_keep_alive_max_count(1000);
    server.set_keep_alive_timeout(2); // of which stop() waits for the rest
    server.set_tcp_nodelay(true);
    server.set_error_handler([max = o.max_body](const Request& req, Response& res) {
        if (!res.has_header("Content-Type")) put_error(res, error_of(res.status, req, max));
    });
    server.set_exception_handler([](const Request&, Response& res, const std::exception_ptr& why) {
        try {
            std::rethrow_exception(why);
        } catch (const std::exception& e) {
            put_error(res, api_error(500, e.what()));
        }
    });
    const gate may{.s = s, .loopback = is_loopback(o.host)};
    add_gate(server, may);
    add_pages(server, s);
    add_posts(server, s, may, o.max_body);
    server.listen_after_bind();
    state_->returned = true;
}

void http_api::stop() {
    // httplib's stop() does nothing before it listens.
    while (!state_->server.is_running() && !state_->returned)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    state_->server.stop();
}

} // namespace kvtl_server
