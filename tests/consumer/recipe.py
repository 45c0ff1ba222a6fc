"""Runs packaging/conan/conanfile.py with classes that stand for Conan's: recipe.py ROOT WORK NAME VERSION DESCRIPTION

Leaves what it would package in WORK/package. SPDX-License-Identifier: MIT
"""
import ast
import collections
import fnmatch
import pathlib
import shutil
import sys
import types

root, work = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
name, version, description = sys.argv[3:6]




def copy(_recipe, pattern, src, dst):
    found = [p for p in pathlib.Path(src).rglob("*") if p.is_file() and fnmatch.fnmatch(str(p.relative_to(src)), pattern)
             and not str(p.relative_to(src)).startswith("build")]
    if not found:
        raise SystemExit(f"{pattern}: no file below {src}")
    for path in found:
        to = pathlib.Path(dst) / path.relative_to(src)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, to)


class Component(types.SimpleNamespace):
    def set_property(self, key, value):
        setattr(self, key, value)


class ConanFile:
    def requires(self, reference):
        self.required.append(reference.split("/")[0])


def module(path, **members):
    sys.modules[path] = types.ModuleType(path)
    sys.modules[path].__dict__.update(members)


module("conan", ConanFile=ConanFile)
module("conan.errors", ConanInvalidConfiguration=ValueError)
module("conan.tools")
module("conan.tools.build", check_min_cppstd=lambda recipe, least: None)
module("conan.tools.files", copy=copy, load=lambda recipe, path: pathlib.Path(path).read_text())

ast.parse((root / "packaging/conan/test_package/conanfile.py").read_text())
space = {}
exec((root / "packaging/conan/conanfile.py").read_text(), space)  # noqa: S102
recipe = space["KvtlConan"]()
recipe.recipe_folder = str(root / "packaging/conan")
recipe.export_sources_folder = recipe.source_folder = str(work / "sources")
recipe.package_folder = str(work / "package")
recipe.required = []
recipe.options = types.SimpleNamespace(with_uring=True, with_calibrate=True, with_tls=True)
recipe.settings = types.SimpleNamespace(os="Linux", arch="x86_64")
recipe.info = types.SimpleNamespace(clear=lambda: None)
recipe.cpp_info = Component(components=collections.defaultdict(Component))
for step in ("set_version", "export_sources", "requirements", "validate", "package", "package_id", "package_info"):
    getattr(recipe, step)()

wrong = [f"{what} is '{read}'; the project says '{expected}'" for what, read, expected in (
    ("name", recipe.name, name), ("version", recipe.version, version), ("description", recipe.description, description),
    ("license", recipe.license + " License", (root / "LICENSE").read_text().splitlines()[0])) if read != expected]
targets = {c.cmake_target_name for c in recipe.cpp_info.components.values()}
if targets != {"kvtl::kvtl", "kvtl::uring", "kvtl::calibrate", "kvtl::tls"}:
    wrong.append(f"targets are {sorted(targets)}")
of_all = getattr(recipe.cpp_info, "cmake_target_name", "kvtl::kvtl")  # Conan's default
if of_all in targets:
    wrong.append(f"the target of the whole package has the name of a component, {of_all}")
for component in recipe.cpp_info.components.values():
    for required in component.requires:
        if required.split("::")[0] not in [*recipe.required, *recipe.cpp_info.components]:
            wrong.append(f"a component requires '{required}', which the recipe does not require")
packaged = {str(p.relative_to(work / "package/include")) for p in (work / "package/include").rglob("*.hpp")}
ours = {str(p.relative_to(root / "include")) for p in (root / "include").rglob("*.hpp")}
wrong += [f"not packaged: {header}" for header in sorted(ours - packaged)]
if not (work / "package/licenses/LICENSE").exists():
    wrong.append("no licence is packaged")
for os_name, arch, valid in (("Linux", "armv8", True), ("Windows", "x86_64", False), ("Linux", "riscv64", False)):
    recipe.settings = types.SimpleNamespace(os=os_name, arch=arch)
    try:
        recipe.validate()
        accepted = True
    except ValueError:
        accepted = False
    if accepted != valid:
        wrong.append(f"{os_name} on {arch} is {'accepted' if accepted else 'refused'}")
sys.exit("\n".join(f"conanfile.py: {w}" for w in wrong) or None)
