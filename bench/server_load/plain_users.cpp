// Users in turn through llama.cpp with its own cache, which has cells for a few of their histories: who finds his dropped has
// his prompt computed again. The other side of server_load.py users.
//
//   kvtl-plain-users MODEL CELLS TURNS TOKENS THREADS < TEXTS
//
// TEXTS: the first prompt of each user, each behind its length in bytes and a newline. A turn generates up to TOKENS (greedy),
// and the next prompt has the answer behind it. Of histories that do not fit the one used least recently is dropped.
// Prints: a line of JSON: seconds of all, seconds to each first token, tokens of prompts, those not computed, tokens generated.
// SPDX-License-Identifier: MIT
#include <kvtl/version.hpp>

#include "command_line.hpp"
#include "error.hpp"
#include "program.hpp"
#include "session.hpp"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <numeric>
#include <string>
#include <vector>

namespace {

using llama_run::token_id;
using steady = std::chrono::steady_clock;

double since(steady::time_point begin) {
    return std::chrono::duration<double>(steady::now() - begin).count();
}

struct user {
    std::string said;
    std::vector<token_id> held; ///< in the cache
    std::size_t used = 0;
};

std::vector<user> users_of(std::istream& in) {
    std::vector<user> all;
    for (std::string length; std::getline(in, length);) {
        all.emplace_back().said.resize(std::strtoull(length.c_str(), nullptr, 10));
        in.read(all.back().said.data(), static_cast<std::streamsize>(all.back().said.size()));
    }
    return all;
}

int run(const std::string& file, std::size_t cells, std::size_t turns, std::size_t most, unsigned threads) {
    std::vector<user> users = users_of(std::cin);
    engine::require(!users.empty() && cells > 0,
                    "TEXTS or CELLS is empty; valid: a text at least, a cell at least");
    const llama_run::loaded_model model(file);
    llama_run::session_options options;
    options.plain = true;
    options.threads = threads;
    options.sequences = static_cast<std::uint32_t>(users.size());
    options.batch = 256;
    options.cells = static_cast<std::uint32_t>(cells);
    options.max_tokens = cells;
    llama_run::session session(model, options, "kvtl-plain-users");
    llama_run::token_batch batch(session.batch());
    engine::sampler greedy(0, 1);
    std::vector<double> first;
    std::size_t prompts = 0, cached = 0, generated = 0, now = 0;
    const auto make_room = [&](std::size_t mine, std::size_t tokens) {
        for (;;) {
            std::size_t held = tokens;
            user* oldest = nullptr;
            for (user& u : users) {
                held += &u == &users[mine] ? 0 : u.held.size();
                if (&u != &users[mine] && !u.held.empty() && (oldest == nullptr || u.used < oldest->used))
                    oldest = &u;
            }
            if (held <= session.cells()) return;
            engine::require(oldest != nullptr, "CELLS is too small for a prompt and its answer");
            session.end(static_cast<unsigned>(oldest - users.data()));
            oldest->held.clear();
        }
    };
    const auto decode = [&](unsigned i, token_id id, bool last) {
        batch.add(id, users[i].held.size(), i, last);
        users[i].held.push_back(id);
        if (!last && batch.room() > 0) return;
        session.decode(batch);
    };
    const auto begin = steady::now();
    for (std::size_t turn = 0; turn < turns; ++turn)
        for (unsigned i = 0; i < users.size(); ++i) {
            user& u = users[i];
            const auto asked = steady::now();
            const std::vector<token_id> prompt = model.encode(u.said, true, false);
            make_room(i, prompt.size() + most);
            const auto same = static_cast<std::size_t>(
                std::mismatch(u.held.begin(), u.held.end(), prompt.begin(), prompt.end() - 1).first -
                u.held.begin());
            if (same < u.held.size()) {
                engine::require(session.rewind(i, same), "llama.cpp cannot rewind this model");
                u.held.resize(same);
            }
            prompts += prompt.size(), cached += same, u.used = ++now;
            std::size_t last = 0; // of the batch
            for (std::size_t t = same; t < prompt.size(); ++t) {
                if (batch.room() == 0 || t == same) batch.clear();
                last = batch.size();
                decode(i, prompt[t], t + 1 == prompt.size());
            }
            for (std::size_t n = 0; n < most; ++n) {
                const token_id id = greedy.choose(session.logits(last));
                if (n == 0) first.push_back(since(asked));
                if (model.is_end(id)) break;
                ++generated;
                u.said += model.piece(id);
                if (n + 1 == most) break;
                batch.clear();
                last = 0;
                decode(i, id, true);
            }
            u.said += " And what is " + std::to_string(turn) + "?";
        }
    const nlohmann::json row{{"seconds", since(begin)},
                             {"first", first},
                             {"prompts", prompts},
                             {"cached", cached},
                             {"generated", generated}};
    std::printf("%s\n", row.dump().c_str());
    return 0;
}

} // namespace

int main(int argc, char** argv) {
    return engine::run_program("kvtl-plain-users", [&] {
        std::string model;
        std::size_t cells = 0, turns = 0, tokens = 0;
        unsigned threads = 0;
        CLI::App app("Users in turn through llama.cpp with its own cache. The first prompt of each user "
                     "comes on standard "
                     "input, behind its length in bytes and a newline.",
                     "kvtl-plain-users");
        app.set_version_flag("--version", "kvtl-plain-users " KVTL_VERSION_STRING);
        const auto number = [&app](const char* name, auto& to, const char* help) {
            app.add_option(name, to, help)->required()->check(engine::whole_number);
        };
        app.add_option("MODEL", model, "GGUF file")->required();
        number("CELLS", cells, "tokens that the cache holds");
        number("TURNS", turns, "of each user");
        number("TOKENS", tokens, "generated per turn, at most");
        number("THREADS", threads, "of llama.cpp");
        if (const auto status = engine::parse_command_line(app, argc, argv)) return *status;
        return run(model, cells, turns, tokens, threads);
    });
}
