// One suite over every blob_store: a folder, a server of Redis, three of them, and a cluster. redis-cli says what is stored.
// SPDX-License-Identifier: MIT
#include <kvtl/store/blob_folder.hpp>
#include <kvtl/store/resp_store.hpp>

#include "support/redis_servers.hpp"
#include "support/rude_server.hpp"
#include "support/scratch_folder.hpp"

#include <algorithm>
#include <fstream>
#include <random>

namespace blobs_test {

using namespace kvtl_test;
using namespace std::chrono_literals;

namespace {

using bytes = std::vector<std::byte>;

bytes random_bytes(std::size_t n, unsigned seed) {
    std::mt19937 random(seed);
    bytes b(n);
    for (std::byte& one : b) one = static_cast<std::byte>(random());
    return b;
}
kvtl::blob_deadline soon() {
    return kvtl::blob_clock::now() + 20s;
}
template <class S> bytes got(S& s, const std::string& name, std::size_t most = std::size_t{4} << 20) {
    bytes b(most);
    std::uint64_t n = 0;
    const std::span<std::byte> into = b;
    REQUIRE(s.get(std::span(&name, 1), std::span(&into, 1), std::span(&n, 1), soon()).ok());
    if (n == kvtl::no_blob) return {};
    b.resize(n);
    return b;
}

template <class S> void check_suite(S& s) {
    // sizes around the buffers of a connection, and the largest chunk; many in flight
    std::vector<std::string> names;
    std::vector<bytes> values;
    for (const std::size_t n : {1U, 2U, 100U, 16383U, 16384U, 16385U, 65536U, 1U << 20, 4U << 20}) {
        names.push_back("t:{" + std::to_string(n % 7) + "}:" + std::to_string(n));
        values.push_back(random_bytes(n, static_cast<unsigned>(n)));
        std::uint8_t there = 2; // which is how a cluster says where it lies
        REQUIRE(s.touch(std::span(&names.back(), 1), 0s, std::span(&there, 1), soon()).ok());
        REQUIRE(there == 0);
        const kvtl::status put = s.put(names.back(), values.back(), 100s, soon());
        REQUIRE_MESSAGE(put.ok(), put.what());
    }
    const kvtl::status all_there = s.settle(soon());
    REQUIRE_MESSAGE(all_there.ok(), all_there.what());
    for (std::size_t i = 0; i < names.size(); ++i) REQUIRE(got(s, names[i]) == values[i]);

    // many at once, with one that is not there in the middle
    std::vector<std::string> asked = names;
    asked.insert(asked.begin() + 3, "t:{none}:1");
    std::vector<bytes> places(asked.size(), bytes(std::size_t{4} << 20));
    std::vector<std::span<std::byte>> into(places.begin(), places.end());
    std::vector<std::uint64_t> lengths(asked.size());
    REQUIRE(s.get(asked, into, lengths, soon()).ok());
    for (std::size_t i = 0; i < asked.size(); ++i) {
        if (i == 3) {
            CHECK(lengths[i] == kvtl::no_blob);
            continue;
        }
        const bytes& expected = values[i < 3 ? i : i - 1];
        REQUIRE(lengths[i] == expected.size());
        REQUIRE(std::equal(expected.begin(), expected.end(), places[i].begin()));
    }
    std::vector<std::uint8_t> there(asked.size());
    REQUIRE(s.touch(asked, 50s, there, soon()).ok());
    for (std::size_t i = 0; i < asked.size(); ++i) CHECK(there[i] == (i != 3));

    // a value that is put again, one that is longer than its place, one that is removed
    const bytes other = random_bytes(10, 99);
    REQUIRE(s.put(names[2], other, 100s, soon()).ok());
    REQUIRE(s.settle(soon()).ok());
    CHECK(got(s, names[2]) == other);
    bytes small(9, std::byte{7});
    small.push_back(std::byte{8});
    const std::span<std::byte> tight = std::span(small).first(9);
    std::uint64_t n = 0;
    const kvtl::status longer =
        s.get(std::span(&names[2], 1), std::span(&tight, 1), std::span(&n, 1), soon());
    CHECK(longer.code() == kvtl::errc::out_of_range);
    CHECK(std::string(longer.what()).find("10 bytes; valid: up to 9") != std::string::npos);
    CHECK(n == kvtl::no_blob);
    CHECK(small.back() == std::byte{8});
    CHECK(got(s, names[2]) == other); // and it goes on
    const std::vector<std::string> around = {names[1], names[2], names[3]};
    bytes first(10), last(20000);
    const std::vector<std::span<std::byte>> places_around = {first, tight, last};
    std::vector<std::uint64_t> lengths_around(3);
    CHECK(s.get(around, places_around, lengths_around, soon()).code() == kvtl::errc::out_of_range);
    CHECK(lengths_around == std::vector<std::uint64_t>{2, kvtl::no_blob, 16383}); // the others are right
    CHECK(std::equal(values[3].begin(), values[3].end(), last.begin()));
    REQUIRE(s.remove(asked, soon()).ok());
    for (const std::string& name : names) CHECK(got(s, name).empty());

    // 3,000 short commands
    std::vector<std::string> many;
    for (int i = 0; i < 3000; ++i) many.push_back("t:{x" + std::to_string(i) + "}");
    REQUIRE(s.put(many[2500], other, 100s, soon()).ok() == s.settle(soon()).ok());
    std::vector<std::uint8_t> few(many.size());
    REQUIRE(s.touch(many, 60s, few, soon()).ok());
    if (few[2500] == 0) { // a cluster did not know the slot
        REQUIRE(s.put(many[2500], other, 100s, soon()).ok());
        REQUIRE(s.settle(soon()).ok());
        REQUIRE(s.touch(many, 60s, few, soon()).ok());
    }
    CHECK(std::count(few.begin(), few.end(), 1) == 1);
    CHECK(few[2500] == 1);

    // time to live: a blob ends, unless it is touched
    REQUIRE(s.put("t:{a}:1", other, 1s, soon()).ok());
    REQUIRE(s.put("t:{a}:2", other, 1s, soon()).ok());
    static_cast<void>(s.settle(soon()));
    const std::string second = "t:{a}:2";
    std::uint8_t one = 0;
    REQUIRE(s.touch(std::span(&second, 1), 100s, std::span(&one, 1), soon()).ok());
    for (int i = 0; i < 400 && !got(s, "t:{a}:1").empty(); ++i) std::this_thread::sleep_for(10ms);
    CHECK(got(s, "t:{a}:1").empty());
    CHECK(got(s, "t:{a}:2") == (one == 1 ? other : bytes{}));

    // a deadline that has passed
    CHECK_FALSE(s.touch(std::span(&second, 1), 0s, std::span(&one, 1), kvtl::blob_clock::now() - 1ms).ok());
}

kvtl::resp_store<> open_resp(std::vector<kvtl::server_address> servers, kvtl::resp_login login = {}) {
    auto s =
        kvtl::resp_store<>::open({.servers = std::move(servers), .login = std::move(login), .stall = 5s});
    REQUIRE(s.ok());
    return *std::move(s);
}

} // namespace

TEST_CASE("blobs in a folder") {
    const scratch_folder folder;
    auto s = kvtl::blob_folder::open(folder.path());
    REQUIRE(s.ok());
    check_suite(*s);
    REQUIRE(s->put("kvtl:1:old", random_bytes(5, 1), -1s, soon()).ok());
    REQUIRE(s->put("kvtl:1:new", random_bytes(5, 1), 100s, soon()).ok());
    REQUIRE(s->put("mine:old", random_bytes(5, 1), -1s, soon()).ok());
    using file_time = std::filesystem::file_time_type;
    for (const auto& [name, age] :
         {std::pair("kvtl:1:x.part-00", 5s), std::pair("kvtl:1:x.part-01", 7200s)}) {
        std::ofstream(folder.file(name)) << "half"; // as another machine writes them
        std::filesystem::last_write_time(folder.file(name), file_time::clock::now() - age);
    }
    CHECK_FALSE(s->sweep("kvtl:1:", kvtl::blob_clock::now() - 1ms).ok());
    CHECK(std::filesystem::exists(folder.file("kvtl:1:old")));
    REQUIRE(s->sweep("kvtl:1:", soon()).ok());
    CHECK(std::filesystem::exists(folder.file("kvtl:1:x.part-00")));
    CHECK_FALSE(std::filesystem::exists(folder.file("kvtl:1:x.part-01")));
    CHECK_FALSE(std::filesystem::exists(folder.file("kvtl:1:old")));
    CHECK(std::filesystem::exists(folder.file("kvtl:1:new")));
    CHECK(std::filesystem::exists(folder.file("mine:old")));
}

TEST_CASE("a name that would be a file elsewhere is refused") {
    const scratch_folder folder;
    std::filesystem::create_directory(folder.file("inner"));
    std::ofstream(folder.file("outside")) << "x";
    auto s = kvtl::blob_folder::open(folder.file("inner"));
    REQUIRE(s.ok());
    for (const std::string& name :
         {std::string("../outside"), std::string(), std::string(201, 'x'), std::string("a.b")}) {
        CHECK(s->put(name, random_bytes(5, 1), 100s, soon()).code() == kvtl::errc::invalid_argument);
        std::uint8_t there = 0;
        CHECK_FALSE(s->touch(std::span(&name, 1), 100s, std::span(&there, 1), soon()).ok());
        CHECK_FALSE(s->remove(std::span(&name, 1), soon()).ok());
    }
    CHECK(std::filesystem::exists(folder.file("outside")));
}

TEST_CASE("a folder of blobs that is none says so") {
    const scratch_folder folder;
    const auto none = kvtl::blob_folder::open(folder.file("none"));
    REQUIRE_FALSE(none.ok());
    CHECK(none.error().code == kvtl::errc::absent);
    std::ofstream(folder.file("file")) << "x";
    CHECK_FALSE(kvtl::blob_folder::open(folder.file("file")).ok());
}

TEST_CASE("blobs on a server of Redis") {
    if (!redis_is_there()) return;
    const redis_server server;
    auto s = open_resp({server.address()});
    check_suite(s);
    // redis-cli sees what was put, and for how long; and its values are read
    const bytes text = {std::byte{'a'}, std::byte{'\n'}, std::byte{'b'}};
    REQUIRE(s.put("kvtl:cli", text, 1000s, soon()).ok());
    REQUIRE(s.settle(soon()).ok());
    CHECK(server.cli("get kvtl:cli") == "a\nb");
    const int ttl = std::stoi(server.cli("ttl kvtl:cli"));
    CHECK(ttl > 900);
    CHECK(ttl <= 1000);
    CHECK(server.cli("set theirs value") == "OK");
    CHECK(got(s, "theirs").size() == 5);
    CHECK(server.cli("rpush list 1") == "1"); // a value that is no blob
    const std::string list = "list";
    bytes b(10);
    std::uint64_t n = 0;
    const std::span<std::byte> into = b;
    const kvtl::status wrong = s.get(std::span(&list, 1), std::span(&into, 1), std::span(&n, 1), soon());
    CHECK(std::string(wrong.what()).find("WRONGTYPE") != std::string::npos);
    CHECK(got(s, "theirs").size() == 5); // the connection goes on
}

TEST_CASE("a put whose replies nobody waits for does not count against the server") {
    if (!redis_is_there()) return;
    const redis_server server;
    auto s = open_resp({server.address()});
    for (int i = 0; i < 3; ++i)
        REQUIRE(s.put("t:" + std::to_string(i), random_bytes(1 << 20, 1), 100s, soon()).ok());
    CHECK_FALSE(s.settle(kvtl::blob_clock::now()).ok());
    const std::string name = "t:none";
    std::uint8_t there = 1;
    const kvtl::status next = s.touch(std::span(&name, 1), 0s, std::span(&there, 1), soon());
    REQUIRE_MESSAGE(next.ok(), next.what());
    CHECK(there == 0);
}

TEST_CASE("a connection that the server closed while it was idle is opened anew") {
    if (!redis_is_there()) return;
    const redis_server server;
    auto s = open_resp({server.address()});
    const bytes value = random_bytes(100, 1);
    REQUIRE(s.put("t:1", value, 100s, soon()).ok());
    REQUIRE(s.settle(soon()).ok());
    REQUIRE(server.cli("client kill type normal") == "1");
    CHECK(got(s, "t:1") == value);
    REQUIRE(server.cli("client kill type normal") == "1");
    const kvtl::status put = s.put("t:2", value, 100s, soon());
    CHECK_MESSAGE(put.ok(), put.what());
    CHECK(s.settle(soon()).ok());
}

TEST_CASE("a deadline of the caller is no fault of the server") {
    std::atomic<bool> answers = false;
    rude_server server([&](const rude_server::words& w) {
        if (w[0] == "PING") return rude_answer{"+PONG\r\n"};
        return answers ? rude_answer{":1\r\n"} : rude_answer{};
    });
    auto s = open_resp({server.address()});
    const std::string name = "n";
    std::uint8_t there = 0;
    const auto ask = [&](auto until) {
        return s.touch(std::span(&name, 1), 0s, std::span(&there, 1), until);
    };
    CHECK_FALSE(ask(kvtl::blob_clock::now() + 100ms).ok());
    answers = true;
    CHECK(ask(soon()).ok());
    CHECK(there == 1);
}

TEST_CASE("a server that answers a greeting and no command is left alone for longer each time") {
    rude_server server([](const rude_server::words& w) {
        return w[0] == "PING" ? rude_answer{"+PONG\r\n"} : rude_answer{};
    });
    auto opened = kvtl::resp_store<>::open(
        {.servers = {server.address()}, .stall = 10ms, .retry_first = 20ms, .retry_most = 100s});
    REQUIRE(opened.ok());
    const std::string name = "n", words = "it is tried again in ";
    std::uint8_t there = 0;
    int longest = 0;
    for (int i = 0; i < 4000 && longest <= 40; ++i) {
        const std::string what = opened->touch(std::span(&name, 1), 0s, std::span(&there, 1), soon()).what();
        if (const auto at = what.find(words); at != what.npos)
            longest = std::max(longest, std::stoi(what.substr(at + words.size())));
        std::this_thread::sleep_for(5ms);
    }
    CHECK(longest > 40);
}

TEST_CASE("which refusals of a server are final, and that none repeats a password") {
    struct reply {
        const char* bytes;
        kvtl::errc code;
    };
    for (const reply& r :
         {reply{"-WRONGPASS invalid\r\n", kvtl::errc::file_refused},
          reply{"-NOPERM no\r\n", kvtl::errc::file_refused},
          reply{"-ERR AUTH <secret> called without any password\r\n", kvtl::errc::file_refused},
          reply{"-ERR invalid password secret\r\n", kvtl::errc::file_refused},
          reply{"-LOADING Redis is loading the dataset in memory\r\n", kvtl::errc::io_error},
          reply{"-ERR max number of clients reached\r\n", kvtl::errc::io_error},
          reply{"-MISCONF Redis is configured to save\r\n", kvtl::errc::io_error}}) {
        CAPTURE(std::string(r.bytes));
        rude_server server([&](const rude_server::words&) { return rude_answer{r.bytes}; });
        auto s = open_resp({server.address()}, {.password = "secret"});
        const kvtl::status refused = s.check(soon());
        CHECK(refused.code() == r.code);
        CHECK(std::string(refused.what()).find("it refuses: ") != std::string::npos);
        CHECK(std::string(refused.what()).find("secret") == std::string::npos);
    }
}

TEST_CASE("blobs behind a password, in another database") {
    if (!redis_is_there()) return;
    const redis_server server({"--requirepass", "secret"});
    auto s = open_resp({server.address()}, {.password = "secret", .database = 3});
    CHECK(s.check(soon()).ok());
    check_suite(s);
    REQUIRE(s.put("there", random_bytes(4, 1), 100s, soon()).ok());
    REQUIRE(s.settle(soon()).ok());
    CHECK(server.cli("--no-auth-warning -a secret -n 3 exists there") == "1");
    CHECK(server.cli("--no-auth-warning -a secret -n 0 exists there") == "0");
    auto named = open_resp({server.address()}, {.user = "default", .password = "secret"});
    CHECK(named.check(soon()).ok());
    auto wrong = open_resp({server.address()}, {.password = "guess"});
    const kvtl::status refused = wrong.check(soon());
    CHECK(refused.code() == kvtl::errc::file_refused);
    CHECK(std::string(refused.what()).find("it refuses: WRONGPASS") != std::string::npos);
    auto none = open_resp({server.address()});
    CHECK(std::string(none.check(soon()).what()).find("NOAUTH") != std::string::npos);
    auto far = open_resp({server.address()}, {.password = "secret", .database = 99});
    CHECK(std::string(far.check(soon()).what()).find("out of range") != std::string::npos);
}

TEST_CASE("blobs on three servers: if one is lost, only its blobs are") {
    if (!redis_is_there()) return;
    std::vector<std::unique_ptr<redis_server>> servers;
    std::vector<kvtl::server_address> addresses;
    for (int i = 0; i < 3; ++i) {
        servers.push_back(std::make_unique<redis_server>());
        addresses.push_back(servers.back()->address());
    }
    auto s = open_resp(addresses);
    check_suite(s);
    for (const auto& one : servers) CHECK(one->cli("flushall") == "OK");
    const bytes value = random_bytes(100, 3);
    std::vector<std::string> names;
    for (int i = 0; i < 300; ++i) {
        names.push_back("t:{" + std::to_string(i) + "}:0");
        REQUIRE(s.put(names.back(), value, 100s, soon()).ok());
    }
    REQUIRE(s.settle(soon()).ok());
    std::vector<int> share;
    for (const auto& one : servers) {
        share.push_back(std::stoi(one->cli("dbsize")));
        CHECK(share.back() > 50);
    }
    // another order of the list places them alike
    auto turned = open_resp({addresses[2], addresses[0], addresses[1]});
    std::vector<std::uint8_t> there(names.size());
    REQUIRE(turned.touch(names, 0s, there, soon()).ok());
    CHECK(std::count(there.begin(), there.end(), 1) == 300);
    servers[1]->kill();
    CHECK_FALSE(s.touch(names, 0s, there, soon()).ok());
    CHECK(std::count(there.begin(), there.end(), 1) == 300 - share[1]);
    for (int i = 0; i < 300; ++i)
        if (there[static_cast<std::size_t>(i)] != 0) {
            REQUIRE(got(s, names[static_cast<std::size_t>(i)]) == value);
            break;
        }
}

TEST_CASE("blobs in a cluster of three: slots are learned, and a slot that moves is followed") {
    if (!redis_is_there()) return;
    const redis_cluster cluster;
    auto s = open_resp({cluster.nodes[0]->address()}); // which names the others
    check_suite(s);
    CHECK(s.servers() == 3);
    CHECK(kvtl::resp_slot("123456789") == 0x31C3); // the check value of the specification
    for (const std::string name : {"foo", "a{foo}b", "kvtl:1:{00ff}:7", "{}x", "x{", "x{y}{z}"})
        CHECK(std::to_string(kvtl::resp_slot(name)) ==
              cluster.nodes[0]->cli("cluster keyslot '" + name + "'"));

    // a slot moves from one node to another: ASK while it moves, MOVED afterwards
    const std::string name = "kvtl:{moves}", missing = "kvtl:{moves}:2";
    const bytes value = random_bytes(1000, 5);
    std::uint8_t there = 0;
    REQUIRE(s.touch(std::span(&name, 1), 0s, std::span(&there, 1), soon()).ok());
    REQUIRE(s.put(name, value, 100s, soon()).ok());
    REQUIRE(s.settle(soon()).ok());
    const std::string slot = std::to_string(kvtl::resp_slot(name));
    std::size_t from = 0;
    while (cluster.nodes[from]->cli("cluster countkeysinslot " + slot) != "1") ++from;
    const redis_server &source = *cluster.nodes[from], &target = *cluster.nodes[(from + 1) % 3];
    const std::string source_id = source.cli("cluster myid"), target_id = target.cli("cluster myid");
    CHECK(target.cli("cluster setslot " + slot + " importing " + source_id) == "OK");
    CHECK(source.cli("cluster setslot " + slot + " migrating " + target_id) == "OK");
    CHECK(got(s, name) == value); // still there
    CHECK(source.cli("migrate 127.0.0.1 " + std::to_string(target.port()) + " '" + name + "' 0 5000") ==
          "OK");
    CHECK(got(s, name) == value); // ASK
    CHECK(got(s, missing).empty());
    for (const redis_server* one : {&target, &source})
        CHECK(one->cli("cluster setslot " + slot + " node " + target_id) == "OK");
    CHECK(got(s, name) == value); // MOVED
    CHECK(got(s, name) == value);
}

TEST_CASE("a server that misbehaves costs one sentence and the deadline at most") {
    struct rude {
        const char* name;
        rude_answer answer;
        const char* words; ///< of the error; "" : a miss
    };
    const rude all[] = {
        {"nil", {"$-1\r\n"}, ""},
        {"an error", {"-OOM command not allowed\r\n"}, "OOM command not allowed"},
        {"a long error", {"-" + std::string(20000, 'x') + "\r\n"}, "xxxx"},
        {"an endless error", {"-" + std::string(1 << 20, 'x')}, "its reply has no end"},
        {"nothing", {}, "timed out"},
        {"an early end", {"$100\r\nabc", true}, "closed the connection"},
        {"a short value", {"$100\r\nabc"}, "timed out"},
        {"a value that goes on", {"$3\r\nabcdef\r\n"}, "its value does not end"},
        {"an endless length", {"$999999999999999999999999\r\n"}, "no RESP2"},
        {"a huge length", {"$9223372036854775807\r\n"}, "9223372036854775807 bytes; valid: up to 1000"},
        {"a negative length", {"$-7\r\n"}, "a negative length"},
        {"no length", {"$\r\n"}, "no RESP2"},
        {"a list", {"*2\r\n$1\r\na\r\n$1\r\nb\r\n"}, "no RESP2"},
        {"no RESP", {"HTTP/1.1 400 Bad Request\r\n\r\n"}, "no RESP2"},
        {"a number", {":7\r\n"}, "a reply of another kind"},
        {"byte by byte", {"$999\r\n" + std::string(999, 'x') + "\r\n", false, true}, "timed out"},
    };
    for (const rude& r : all) {
        CAPTURE(std::string(r.name));
        rude_server server([&](const rude_server::words& w) {
            return w[0] == "PING"  ? rude_answer{"+PONG\r\n"}
                   : w[0] == "GET" ? r.answer
                                   : rude_answer{":1\r\n"};
        });
        const bool waits =
            std::string(r.words) == "timed out"; // other answers come at once, also on a busy machine
        auto opened =
            kvtl::resp_store<>::open({.servers = {server.address()}, .stall = waits ? 100ms : 5000ms});
        REQUIRE(opened.ok());
        bytes b(1001, std::byte{1});
        const std::span<std::byte> into = std::span(b).first(1000);
        const std::string name = "n";
        std::uint64_t n = 0;
        const kvtl::status s = opened->get(std::span(&name, 1), std::span(&into, 1), std::span(&n, 1),
                                           kvtl::blob_clock::now() + (waits ? 400ms : 20s));
        CAPTURE(std::string(s.what()));
        CHECK(n == kvtl::no_blob);
        CHECK(b.back() == std::byte{1});
        std::string what = s.what();
        std::transform(what.begin(), what.end(), what.begin(),
                       [](char c) { return static_cast<char>(std::tolower(c)); });
        std::string words = r.words;
        std::transform(words.begin(), words.end(), words.begin(),
                       [](char c) { return static_cast<char>(std::tolower(c)); });
        CHECK(s.ok() == words.empty());
        CHECK(what.find(words) != std::string::npos);
        CHECK(what.find('\n') == std::string::npos);
    }
}

TEST_CASE("the circuit of a server that does not answer opens, and closes again") {
    std::atomic<bool> answers = false;
    rude_server server([&](const rude_server::words& w) {
        if (!answers) return rude_answer{};
        return w[0] == "PING" ? rude_answer{"+PONG\r\n"} : rude_answer{":1\r\n"};
    });
    auto opened = kvtl::resp_store<>::open(
        {.servers = {server.address()}, .stall = 50ms, .retry_first = 200ms, .retry_most = 400ms});
    REQUIRE(opened.ok());
    const std::string name = "n";
    std::uint8_t there = 0;
    const auto ask = [&] { return opened->touch(std::span(&name, 1), 0s, std::span(&there, 1), soon()); };
    CHECK_FALSE(ask().ok());
    // The server counts a connection in a thread of its own.
    for (int i = 0; i < 2000 && server.connections() == 0; ++i) std::this_thread::sleep_for(5ms);
    const unsigned tried = server.connections();
    for (int i = 0; i < 100; ++i) {
        const kvtl::status s = ask();
        if (std::string(s.what()).find("it is tried again in") == std::string::npos) break; // a slow machine
        REQUIRE(server.connections() == tried);
    }
    answers = true;
    for (int i = 0; i < 2000 && !ask().ok(); ++i) std::this_thread::sleep_for(5ms);
    CHECK(there == 1);
    CHECK(ask().ok());
}

TEST_CASE("a reply that comes late is for nobody") {
    std::atomic<int> asked = 0;
    rude_server server([&](const rude_server::words& w) {
        if (w[0] == "PING") return rude_answer{"+PONG\r\n"};
        if (asked++ == 0) std::this_thread::sleep_for(200ms);
        return rude_answer{"$1\r\n" + w[1].substr(0, 1) + "\r\n"};
    });
    auto opened = kvtl::resp_store<>::open(
        {.servers = {server.address()}, .stall = 50ms, .retry_first = 1ms, .retry_most = 1ms});
    REQUIRE(opened.ok());
    const auto ask = [&](const std::string& name, char& value) {
        const std::span<std::byte> into = std::as_writable_bytes(std::span(&value, 1));
        std::uint64_t n = 0;
        return opened->get(std::span(&name, 1), std::span(&into, 1), std::span(&n, 1), soon());
    };
    char value = 0;
    CHECK_FALSE(ask("a", value).ok());
    for (int i = 0; i < 2000 && !ask("b", value).ok(); ++i) std::this_thread::sleep_for(5ms);
    CHECK(value == 'b');
}

TEST_CASE("settings of a store of servers that cannot work") {
    CHECK_FALSE(kvtl::resp_store<>::open({}).ok());
    CHECK_FALSE(kvtl::resp_store<>::open({.servers = {{"127.0.0.1", 1}}, .in_flight = 0}).ok());
    auto nobody = open_resp({{"127.0.0.1", free_port()}});
    CHECK(std::string(nobody.check(soon()).what()).find("Connection refused") != std::string::npos);
}

} // namespace blobs_test
