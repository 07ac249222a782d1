//! Modules of one crate that import each other in a circle.
//!
//! Such modules can only be understood, tested and moved together. The compiler ends circles of crates, not these.
//! Only top modules count: what lies in the folder of one is part of it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::lines;

/// Which top modules each top module of the crate in `folder` names.
fn imports(folder: &Path) -> Result<BTreeMap<String, BTreeSet<String>>> {
    let files = lines::production(folder)?;
    let is_root = |path: &Path| path == Path::new("lib.rs") || path == Path::new("main.rs");
    let root = files.iter().find(|(path, _)| is_root(path));
    let root =
        without_comments(&root.with_context(|| format!("no root in {}", folder.display()))?.1);
    let tops = tops(&root);
    let exported = exported(&root, &tops);
    let mut imports: BTreeMap<_, BTreeSet<_>> =
        tops.iter().map(|&top| (top.to_owned(), BTreeSet::new())).collect();
    for (path, text) in files.iter().filter(|(path, _)| !is_root(path)) {
        let Some(first) = path.iter().next().and_then(|name| name.to_str()) else { continue };
        let module = first.trim_end_matches(".rs");
        let Some(needs) = imports.get_mut(module) else { continue };
        let depth = path.iter().count() - usize::from(path.ends_with("mod.rs"));
        let text = without_comments(text);
        for name in [named(&text, "crate::"), named(&text, &"super::".repeat(depth))].concat() {
            let top = tops.get(name).or_else(|| exported.get(name));
            needs.extend(top.filter(|top| **top != module).map(|&top| top.to_owned()));
        }
    }
    Ok(imports)
}

fn without_comments(text: &str) -> String {
    let code = |line: &str| line.split("//").next().unwrap_or_default().to_owned() + "\n";
    text.lines().map(code).collect()
}

/// The modules that a crate's root declares, but for those of tests.
fn tops(root: &str) -> BTreeSet<&str> {
    let lines = root.lines().zip(root.lines().skip(1));
    let is_test = |line: &str| line.starts_with("#[") && line.contains("test");
    let declared = lines.filter(|(before, _)| !is_test(before)).filter_map(|(_, line)| {
        let (_, name) = line.split_once("mod ").filter(|(public, _)| !public.starts_with(' '))?;
        name.strip_suffix(';')
    });
    declared.collect()
}

/// The names that a crate's root takes out of its modules, with these.
fn exported<'a>(root: &'a str, tops: &BTreeSet<&'a str>) -> BTreeMap<&'a str, &'a str> {
    let mut exported = BTreeMap::new();
    for statement in root.split(';') {
        let Some((_, path)) = statement.rsplit_once("use ") else { continue };
        let mut words = words(path).filter(|word| !["self", "crate"].contains(word));
        if let Some(top) = words.next().and_then(|top| tops.get(top)) {
            exported.extend(words.map(|word| (word, *top)));
        }
    }
    exported
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// What `text` names directly below `path`, by itself or in a list between braces.
fn named<'a>(text: &'a str, path: &str) -> Vec<&'a str> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let mut names = Vec::new();
    for (at, _) in text.match_indices(path).filter(|(at, _)| !text[..*at].ends_with(is_part)) {
        let after = &text[at + path.len()..];
        let Some(list) = after.strip_prefix('{') else {
            names.extend(words(after).next());
            continue;
        };
        let (mut open, mut begins) = (1, true);
        for (at, c) in list.char_indices() {
            match c {
                '{' => open += 1,
                '}' => open -= 1,
                ',' => begins |= open == 1,
                c if begins && is_part(c) => {
                    names.extend(words(&list[at..]).next());
                    begins = false;
                }
                _ => {}
            }
            if open == 0 {
                break;
            }
        }
    }
    names
}

/// The modules that lie on a circle, or between two.
fn circle(mut imports: BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    loop {
        let used: BTreeSet<String> = imports.values().flatten().cloned().collect();
        let ends =
            |module: &String, needs: &BTreeSet<String>| !used.contains(module) || needs.is_empty();
        let gone: Vec<_> = imports
            .iter()
            .filter(|(module, needs)| ends(module, needs))
            .map(|it| it.0.clone())
            .collect();
        if gone.is_empty() {
            return imports.into_keys().collect();
        }
        imports.retain(|module, _| !gone.contains(module));
        imports.values_mut().for_each(|needs| needs.retain(|need| !gone.contains(need)));
    }
}

#[test]
fn no_modules_of_a_crate_import_each_other_in_a_circle() {
    let mut circles = Vec::new();
    for (name, folder) in crate::workspace::packages().unwrap() {
        let circle = circle(imports(&folder.join("src")).unwrap());
        circles.extend((!circle.is_empty()).then(|| format!("{name}: {}", circle.join(", "))));
    }
    assert!(circles.is_empty(), "{}", circles.join("\n"));
}

#[test]
fn circles_are_found_however_they_are_imported() {
    let folder = tempfile::tempdir().unwrap();
    let root = "//! A crate.\nmod a;\npub mod b;\nmod c;\nmod d;\n#[cfg(test)]\nmod e;\n\npub use self::c::{Thing};\n";
    let planted = |b: &str, c: &str| {
        std::fs::create_dir_all(folder.path().join("b")).unwrap();
        for (file, text) in [
            ("lib.rs", root),
            ("a.rs", "use crate::{d, b::{X, Y}};\n"),
            ("b/mod.rs", "mod below;\n"),
            ("b/below.rs", b),
            ("c.rs", c),
            ("d.rs", "// use crate::a;\n#[cfg(test)]\nmod tests {\n    use crate::a;\n}\n"),
        ] {
            std::fs::write(folder.path().join(file), text).unwrap();
        }
        circle(imports(folder.path()).unwrap())
    };
    let none: [&str; 0] = [];
    assert_eq!(planted("use super::Z;\nuse crate::c::Z;\n", "fn f() {}\n"), none);
    assert_eq!(
        planted("use super::super::Thing;\n", "fn f() { super::a::f() }\n"),
        ["a", "b", "c"]
    );
    assert_eq!(planted("use crate::{\n    c,\n    d,\n};\n", "use super::b;\n"), ["b", "c"]);
}
