// A connection over TLS with the calls of tcp_stream: resp_store<tls_stream> speaks to servers that want it. Needs OpenSSL 3.
//
// Checks: TLS 1.2 or newer. The certificate must lead to one of `ca_file`, or of the system's, and name the host that was asked for.
//         A server that asks who calls is shown the certificate of `cert_file`.
// Errors: file_refused for a certificate that does not, for a file that has none, and where the server refuses ours, with
//         OpenSSL's reason; io_error for all else.
// Memory: 32 KiB, and what OpenSSL allocates.
// Cost:   one copy more than OpenSSL's own sockets. Bytes go through tcp_stream, which keeps deadlines and raises no SIGPIPE.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/status.hpp>
#include <kvtl/store/tcp_stream.hpp>

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvtl { inline namespace v0 {

class tls_stream {
  public:
    struct options {
        std::string ca_file{};   ///< PEM of the certificates to trust; empty: the system's
        std::string cert_file{}; ///< PEM of our own certificate, then of those that it leads to; empty: none
        std::string key_file{};  ///< PEM of its key, without a passphrase; empty: it is in cert_file
    };

    tls_stream() = default;
    explicit tls_stream(options o) : options_(std::move(o)) {}
    tls_stream(tls_stream&&) noexcept = default;
    tls_stream& operator=(tls_stream&&) noexcept = default;
    ~tls_stream() = default;

    [[nodiscard]] bool is_open() const noexcept { return tcp_.is_open(); }
    [[nodiscard]] const std::string& name() const noexcept { return tcp_.name(); }
    [[nodiscard]] bool has_ended() const noexcept { return tcp_.has_ended(); }
    void close() noexcept {
        tcp_.close();
        ssl_.reset();
    }

    [[nodiscard, gnu::cold]] status connect(const server_address& to, const call_time& time) {
        close();
        if (status s = tcp_.connect(to, time); !s) return s;
        const status s = shake_hands(to, time);
        if (!s) close();
        return s;
    }

    /// Reads at least one byte.
    [[nodiscard]] status read(std::span<std::byte> into, std::size_t& bytes, const call_time& time) {
        return repeat("reading", time,
                      [&] { return ::SSL_read_ex(ssl_.get(), into.data(), into.size(), &bytes); });
    }
    /// Writes all of the pieces, which it changes.
    [[nodiscard]] status write(std::span<::iovec> pieces, const call_time& time) {
        for (::iovec& p : pieces)
            while (p.iov_len != 0) {
                std::size_t n = 0;
                const std::size_t part = std::min<std::size_t>(p.iov_len, most_part);
                if (status s = repeat("writing", time,
                                      [&] { return ::SSL_write_ex(ssl_.get(), p.iov_base, part, &n); });
                    !s)
                    return s;
                if (status s = send_out(time); !s) return lost(s, time);
                p.iov_base = static_cast<std::byte*>(p.iov_base) + n;
                p.iov_len -= n;
            }
        return {};
    }

  private:
    static constexpr std::size_t most_part = std::size_t{16} << 10; // a record
    struct freed {
        void operator()(::SSL_CTX* c) const noexcept { ::SSL_CTX_free(c); }
        void operator()(::SSL* s) const noexcept { ::SSL_free(s); }
    };

    [[nodiscard]] status failure(const char* doing) const noexcept {
        char why[120] = "it closed the connection";
        const auto code = ::ERR_get_error();
        if (code != 0) ::ERR_error_string_n(code, why, sizeof why);
        if (refuses_us(ERR_GET_REASON(code)))
            return status::failure(
                errc::file_refused, "server %.80s: it refuses our certificate, %s: %s", tcp_.name().c_str(),
                options_.cert_file.empty() ? "of which there is none" : options_.cert_file.c_str(), why);
        return status::failure(errc::io_error, "server %.80s: %s: %s", tcp_.name().c_str(), doing, why);
    }
    /// The server's alert says that it wants a certificate, or another one.
    [[nodiscard]] static bool refuses_us(int reason) noexcept {
        constexpr std::array alerts = {SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED, SSL_R_TLSV1_ALERT_UNKNOWN_CA,
                                       SSL_R_SSLV3_ALERT_BAD_CERTIFICATE,
                                       SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED,
                                       SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN};
        return std::find(alerts.begin(), alerts.end(), reason) != alerts.end();
    }
    [[nodiscard, gnu::cold]] status open_context() {
        const status s = fill_context();
        if (!s) context_.reset();
        ::ERR_clear_error();
        return s;
    }
    [[nodiscard, gnu::cold]] status fill_context() {
        ::ERR_clear_error();
        context_.reset(::SSL_CTX_new(::TLS_client_method()));
        if (!context_) return failure("opening TLS");
        ::SSL_CTX_set_min_proto_version(context_.get(), TLS1_2_VERSION);
        ::SSL_CTX_set_verify(context_.get(), SSL_VERIFY_PEER, nullptr);
        ::SSL_CTX_set_mode(context_.get(),
                           SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
        const int read =
            options_.ca_file.empty()
                ? ::SSL_CTX_set_default_verify_paths(context_.get())
                : ::SSL_CTX_load_verify_locations(context_.get(), options_.ca_file.c_str(), nullptr);
        if (read != 1)
            return status::failure(errc::file_refused,
                                   "TLS: '%.120s' has no certificates to trust; valid: a PEM file",
                                   options_.ca_file.c_str());
        return options_.cert_file.empty() ? status{} : use_own_certificate();
    }
    [[nodiscard, gnu::cold]] status use_own_certificate() {
        ::SSL_CTX_set_default_passwd_cb(context_.get(),
                                        [](char*, int, int, void*) { return 0; }); // asks nobody
        if (::SSL_CTX_use_certificate_chain_file(context_.get(), options_.cert_file.c_str()) != 1)
            return status::failure(errc::file_refused,
                                   "TLS: '%.120s' has no certificate to show; valid: a PEM file",
                                   options_.cert_file.c_str());
        const std::string& key = options_.key_file.empty() ? options_.cert_file : options_.key_file;
        if (::SSL_CTX_use_PrivateKey_file(context_.get(), key.c_str(), SSL_FILETYPE_PEM) != 1)
            return status::failure(errc::file_refused,
                                   "TLS: '%.100s' has no key of the certificate '%.100s'; valid: a PEM file "
                                   "without a passphrase",
                                   key.c_str(), options_.cert_file.c_str());
        return {};
    }
    [[nodiscard, gnu::cold]] status shake_hands(const server_address& to, const call_time& time) {
        if (!context_)
            if (status s = open_context(); !s) return s;
        ::ERR_clear_error();
        ssl_.reset(::SSL_new(context_.get()));
        ::BIO* const in = ::BIO_new(::BIO_s_mem());
        ::BIO* const out = ::BIO_new(::BIO_s_mem());
        if (!ssl_ || in == nullptr || out == nullptr) {
            ::BIO_free(in);
            ::BIO_free(out);
            return failure("opening TLS");
        }
        ::SSL_set_bio(ssl_.get(), in, out); // which owns them now
        ::X509_VERIFY_PARAM* const wanted = ::SSL_get0_param(ssl_.get());
        if (::X509_VERIFY_PARAM_set1_ip_asc(wanted, to.host.c_str()) != 1) { // a name, not a number
            ::ERR_clear_error();
            if (::SSL_set1_host(ssl_.get(), to.host.c_str()) != 1 ||
                ::SSL_ctrl(ssl_.get(), SSL_CTRL_SET_TLSEXT_HOSTNAME, TLSEXT_NAMETYPE_host_name,
                           const_cast<char*>(to.host.c_str())) != 1) // NOLINT: it reads
                return failure("opening TLS");
        }
        ::SSL_set_connect_state(ssl_.get());
        const status s = repeat("opening TLS", time, [&] { return ::SSL_do_handshake(ssl_.get()); });
        const long verified = ssl_ ? ::SSL_get_verify_result(ssl_.get()) : X509_V_OK;
        if (!s && verified != X509_V_OK) {
            ::ERR_clear_error();
            return status::failure(errc::file_refused, "server %.80s: its certificate is refused: %s",
                                   tcp_.name().c_str(), ::X509_verify_cert_error_string(verified));
        }
        return s;
    }
    /// Calls OpenSSL until it has done something, and moves bytes between it and the socket.
    template <class Call>
    [[nodiscard]] status repeat(const char* doing, const call_time& time, const Call& call) {
        for (;;) {
            ::ERR_clear_error();
            const int done = call();
            const int why = done == 1 ? SSL_ERROR_NONE : ::SSL_get_error(ssl_.get(), done);
            const status refused =
                why == SSL_ERROR_NONE || why == SSL_ERROR_WANT_READ ? status{} : failure(doing);
            if (status s = send_out(time); !s && refused.ok()) return lost(s, time); // an alert goes out, too
            if (done == 1) return {};
            if (!refused) return refused;
            std::size_t n = 0;
            buffer_.resize(std::size_t{32} << 10);
            if (status s = tcp_.read(buffer_, n, time); !s) return s;
            if (blob_clock::now() >= time.until) return tcp_.failure(doing, ETIMEDOUT);
            if (::BIO_write(::SSL_get_rbio(ssl_.get()), buffer_.data(), static_cast<int>(n)) !=
                static_cast<int>(n))
                return failure(doing);
        }
    }
    [[nodiscard]] status send_out(const call_time& time) {
        char* bytes = nullptr;
        ::BIO* const out = ::SSL_get_wbio(ssl_.get());
        const long n = ::BIO_ctrl(out, BIO_CTRL_INFO, 0, static_cast<void*>(&bytes));
        if (n <= 0) return {};
        ::iovec all{bytes, static_cast<std::size_t>(n)};
        const status s = tcp_.send(std::span(&all, 1), time);
        static_cast<void>(::BIO_ctrl(out, BIO_CTRL_RESET, 0, nullptr));
        return s;
    }
    /// The connection broke while something was sent. A server that refuses our certificate has said so before.
    [[nodiscard, gnu::cold]] status lost(const status& s, const call_time& time) {
        status why = s;
        std::size_t n = 0;
        buffer_.resize(std::size_t{32} << 10);
        if (tcp_.is_open() && tcp_.has_ended() && tcp_.read(buffer_, n, time).ok() &&
            ::BIO_write(::SSL_get_rbio(ssl_.get()), buffer_.data(), static_cast<int>(n)) > 0) {
            ::ERR_clear_error();
            if (::SSL_read_ex(ssl_.get(), buffer_.data(), 1, &n) != 1)
                if (const status last = failure("writing"); last.code() == errc::file_refused) why = last;
        }
        tcp_.close();
        return why;
    }

    options options_;
    tcp_stream tcp_;
    std::unique_ptr<::SSL_CTX, freed> context_;
    std::unique_ptr<::SSL, freed> ssl_;
    std::vector<std::byte> buffer_;
};

}} // namespace kvtl::v0
