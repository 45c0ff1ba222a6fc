// SPDX-License-Identifier: MIT
#include <kvtl/io/backends.hpp>

#include <contracts/io.hpp>

namespace io_backends_test {

using namespace kvtl_test;

namespace {

any_io::device open_backend(const backend_config& config) {
    return open_device<any_io>(any_backend(config), plan_of(1 << 20));
}
bool opens(const backend_config& config) {
    return any_io::open(any_backend(config), plan_of(1 << 20)).ok();
}

} // namespace

#if defined(KVTL_HAS_URING) && KVTL_HAS_URING
TEST_CASE("the uring backend keeps the contract of a device") {
    const scratch_folder folder;
    io_contract<any_io>([&] { return any_backend({.use = backend::uring, .path = folder.file("a.kv")}); });
}
#else
TEST_CASE("a backend says that uring was not compiled in") {
    const auto opened =
        any_io::open(any_backend({.use = backend::uring, .path = "never.kv"}), plan_of(1 << 20));
    REQUIRE_FALSE(opened.ok());
    CHECK(opened.error().code == errc::unsupported);
    CHECK(opened.error().message.find("posix") != std::string::npos);
    CHECK_FALSE(std::filesystem::exists("never.kv"));
}
#endif

TEST_CASE("backends get their config") {
    const scratch_folder folder;
    const std::string path = folder.file("a.kv");
    std::vector<backend> files = {backend::posix};
#if defined(KVTL_HAS_URING) && KVTL_HAS_URING
    files.push_back(backend::uring);
#endif
    for (const auto use : files)
        for (const bool keep : {true, false}) {
            {
                const auto device =
                    open_backend({.use = use, .path = path, .keep_file = keep, .direct = keep});
                const std::string name = device.device_info().name;
                CHECK(name == (use == backend::posix ? "posix_file" : "uring_file"));
                CHECK(device.device_info().direct == keep);
                CHECK(std::filesystem::exists(path));
            }
            CHECK(std::filesystem::exists(path) == keep);
        }
    CHECK(std::string(open_backend({.use = backend::memory}).device_info().name) == "in_memory");
    CHECK_FALSE(opens({.use = backend::posix, .path = path, .threads = 0}));
    CHECK_FALSE(opens({.use = static_cast<backend>(9), .path = path}));
}

TEST_CASE("a backend with a limit keeps the contract of a device, under its own name") {
    const scratch_folder folder;
    const auto limit = std::make_shared<throttle>(*find_device("ufs40"));
    for (const auto use : {backend::memory, backend::posix}) {
        const auto config = [&] {
            return backend_config{.use = use, .path = folder.file("a.kv"), .limit = limit};
        };
        io_contract<any_io>([&] { return any_backend(config()); });
        const std::string name = open_backend(config()).device_info().name;
        CHECK(name == (use == backend::memory ? "in_memory" : "posix_file"));
    }
}

TEST_CASE("backends are chosen by name") {
    CHECK(parse_backend("memory") == backend::memory);
    CHECK(parse_backend("posix") == backend::posix);
    CHECK(parse_backend("uring") == backend::uring);
    CHECK_FALSE(parse_backend("floppy").has_value());
    CHECK_FALSE(parse_backend("").has_value());
}

} // namespace io_backends_test
