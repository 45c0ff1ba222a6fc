// SPDX-License-Identifier: MIT
#include <kvtl/io/any_io.hpp>

#include <contracts/io.hpp>

using namespace kvtl_test;

TEST_CASE("any_io over memory keeps the contract of a device") {
    io_contract<any_io>([] { return any_io::config{.use = any_io::backend::memory}; });
}

TEST_CASE("any_io over posix_file keeps the contract of a device") {
    const scratch_folder folder;
    io_contract<any_io>([&] {
        return any_io::config{.use = any_io::backend::posix, .path = folder.file("a.kv"), .threads = 3};
    });
}

#if defined(KVTL_HAS_URING) && KVTL_HAS_URING
TEST_CASE("any_io over uring_file keeps the contract of a device") {
    const scratch_folder folder;
    io_contract<any_io>(
        [&] { return any_io::config{.use = any_io::backend::uring, .path = folder.file("a.kv")}; });
}
#else
TEST_CASE("any_io says that uring was not compiled in") {
    const auto opened = any_io::open({.use = any_io::backend::uring, .path = "never.kv"}, plan_of(1 << 20));
    REQUIRE_FALSE(opened.ok());
    CHECK(opened.error().code == errc::unsupported);
    CHECK(opened.error().message.find("posix") != std::string::npos);
    CHECK_FALSE(std::filesystem::exists("never.kv"));
}
#endif

TEST_CASE("any_io passes its config on") {
    const scratch_folder folder;
    const std::string path = folder.file("a.kv");
    std::vector<any_io::backend> files = {any_io::backend::posix};
#if defined(KVTL_HAS_URING) && KVTL_HAS_URING
    files.push_back(any_io::backend::uring);
#endif
    for (const auto use : files)
        for (const bool keep : {true, false}) {
            {
                auto device = open_device<any_io>(
                    {.use = use, .path = path, .keep_file = keep, .direct = keep}, plan_of(1 << 20));
                const std::string name = device.facts().name;
                CHECK(name == (use == any_io::backend::posix ? "posix_file" : "uring_file"));
                CHECK(device.facts().direct == keep);
                CHECK(std::filesystem::exists(path));
            }
            CHECK(std::filesystem::exists(path) == keep);
        }
    CHECK(std::string(open_device<any_io>({.use = any_io::backend::memory}, plan_of(1 << 20)).facts().name) ==
          "in_memory");
    const auto opened =
        any_io::open({.use = any_io::backend::posix, .path = folder.path()}, plan_of(1 << 20));
    REQUIRE_FALSE(opened.ok());
    CHECK(opened.error().code == errc::file_refused);
    CHECK_FALSE(
        any_io::open({.use = any_io::backend::posix, .path = path, .threads = 0}, plan_of(1 << 20)).ok());
}

TEST_CASE("any_io with a limit keeps the contract of a device, under the name of its backend") {
    const scratch_folder folder;
    const auto limit = std::make_shared<throttle>(*find_device("ufs40"));
    for (const auto use : {any_io::backend::memory, any_io::backend::posix}) {
        const auto config = [&] {
            return any_io::config{.use = use, .path = folder.file("a.kv"), .limit = limit};
        };
        io_contract<any_io>(config);
        const std::string name = open_device<any_io>(config(), plan_of(1 << 20)).facts().name;
        CHECK(name == (use == any_io::backend::memory ? "in_memory" : "posix_file"));
    }
}

TEST_CASE("backends are chosen by name") {
    CHECK(any_io::parse("memory") == any_io::backend::memory);
    CHECK(any_io::parse("posix") == any_io::backend::posix);
    CHECK(any_io::parse("uring") == any_io::backend::uring);
    CHECK_FALSE(any_io::parse("floppy").has_value());
    CHECK_FALSE(any_io::parse("").has_value());
}
