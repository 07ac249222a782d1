//! The commented default file and the reference page, made from the types that read the configuration.

use clap::{Arg, Args, Command};
use schemars::{JsonSchema, schema_for};
use serde::Deserializer;
use serde::de::{self, DeserializeOwned, Visitor};
use serde_json::Value;

use crate::args::{ClusterArgs, LIVE, ManagementArgs, RunArgs};
use crate::file::name_of;
use crate::settings::{Flag, Variable};
use crate::tables::{LimitTable, LimitsTable, ListTable};
use model::ban::BanInput;

/// Characters in a line.
const WIDTH: usize = 116;

/// What the default file says before its keys.
const HEADER: &str = "\
Configuration of limiter

Every key is shown with its default or an example, commented out; remove the # to change one. `limiter config check` \
says whether a file is good, `limiter config show` what is in effect and why.

A key is also a flag of `limiter run` (--max-sources for max_sources) and an environment variable \
(LIMITER_MAX_SOURCES). A flag wins over the environment, which wins over this file.

`limiter reload`, or SIGHUP to the daemon, reads this file again: all of it, or nothing if anything is wrong. \
`limiter reload --confirm 60s` goes back to what was in force before unless `limiter confirm` comes in time.";

/// What the reference says before its keys.
const INTRODUCTION: &str = "\
# Configuration reference

`cargo xtask docs` writes this page from the program. [Configuration](../operate/configuration.md) explains the file; \
`limiter config default` prints it with all of this as comments.

A flag of `limiter run` wins over the environment, and that over the file. A change of the file takes effect at once \
with `limiter reload`, or needs a restart.
";

/// Limits and lists, which only examples show.
const EXAMPLES: &str = include_str!("examples.toml");

/// A key of a table, or a table.
struct Key {
    name: &'static str,
    is_required: bool,
    /// Its schema.
    property: Value,
}

/// The keys of a table, in their order.
// From the types that read the file: a text written beside them would soon say something else.
fn keys<T: DeserializeOwned + JsonSchema>() -> Vec<Key> {
    let mut schema = schema_for!(T).to_value();
    let required = schema["required"].take();
    let is_required = |name: &str| {
        required.as_array().is_some_and(|all| all.iter().any(|required| required == name))
    };
    // A schema has no order, and a file has: that in which the fields are written.
    let mut names = Names(&[]);
    // It fails by design, after it has told its fields.
    drop(T::deserialize(&mut names));
    let key = |name: &&'static str| Key {
        name,
        is_required: is_required(name),
        property: schema["properties"][name].take(),
    };
    names.0.iter().map(key).collect()
}

/// The names of a structure's fields: what it asks a deserializer for.
struct Names(&'static [&'static str]);

impl<'de> Deserializer<'de> for &mut Names {
    type Error = de::value::Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
        Err(de::Error::custom("there are only names"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        self.0 = fields;
        self.deserialize_any(visitor)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// Ends a line as a sentence.
fn sentence(line: &str) -> String {
    let is_whole = line.ends_with(['.', ':']);
    if is_whole { line.to_owned() } else { format!("{line}.") }
}

impl Key {
    /// The paragraphs that explain it, a line each, without what `--help` says of the default.
    fn paragraphs(&self) -> (Vec<String>, Option<String>) {
        let doc = self.property["description"].as_str().unwrap_or_default();
        let lines = doc
            .split("\n\n")
            .map(|paragraph| paragraph.split_whitespace().collect::<Vec<_>>().join(" "));
        let mut lines: Vec<_> = lines.collect();
        let mut default = None;
        // In `--help` the text is all there is; a file and a page have a place for the default.
        if let Some((line, rest)) = lines.first().and_then(|line| line.split_once(" [default: ")) {
            default = Some(rest.trim_end_matches(']').to_owned());
            lines[0] = line.to_owned();
        }
        (lines.iter().map(|line| sentence(line)).collect(), default)
    }

    /// What it means, and the values that `arg` takes.
    fn meaning(&self, arg: Option<&Arg>) -> String {
        let values = arg.map(Arg::get_possible_values).unwrap_or_default();
        let values = values.iter().filter_map(|value| {
            Some(format!(
                "- \"{}\": {}",
                value.get_name(),
                sentence(&value.get_help()?.to_string())
            ))
        });
        let values = values.collect::<Vec<_>>().join("\n");
        let mut paragraphs = self.paragraphs().0;
        paragraphs.extend((!values.is_empty()).then_some(values));
        paragraphs.join("\n\n")
    }

    /// Its value in the default file: an example where a key needs one.
    fn value(&self) -> String {
        let example = self.property["examples"].get(0);
        literal(example.unwrap_or(&self.property["default"]))
    }

    /// Its default, as the reference has it.
    fn default(&self) -> String {
        match &self.property["default"] {
            Value::Null => self.paragraphs().1.unwrap_or_else(|| "none".into()),
            default => format!("`{}`", literal(default)),
        }
    }

    fn kind(&self) -> &str {
        let kind = &self.property["type"];
        match kind.as_str().or_else(|| kind[0].as_str()) {
            Some("array") => "list of strings",
            Some(kind) => kind,
            // One of some words.
            None => "string",
        }
    }
}

/// A value as TOML has it.
fn literal(value: &Value) -> String {
    match value {
        Value::Array(all) => {
            format!("[{}]", all.iter().map(literal).collect::<Vec<_>>().join(", "))
        }
        // Without an exponent.
        Value::Number(number) if number.is_f64() => number.as_f64().unwrap_or_default().to_string(),
        other => other.to_string(),
    }
}

/// The lines of `text`, each after `prefix` and none too long.
fn wrapped(text: &str, prefix: &str) -> String {
    let mut wrapped = String::new();
    for line in text.lines() {
        let mut row = prefix.to_owned();
        for word in line.split(' ') {
            if row.len() > prefix.len() {
                if row.chars().count() + word.chars().count() >= WIDTH {
                    wrapped += &row;
                    wrapped.push('\n');
                    prefix.clone_into(&mut row);
                } else {
                    row.push(' ');
                }
            }
            row += word;
        }
        wrapped += row.trim_end();
        wrapped.push('\n');
    }
    wrapped
}

/// Keys that have a default, and the table that they are in.
struct Section {
    /// Nothing of those that are in none.
    table: Option<Key>,
    keys: Vec<Key>,
}

impl Section {
    fn all() -> [Self; 3] {
        let mut root = keys::<RunArgs>();
        let mut take = |name: &str| {
            root.iter().position(|key| key.name == name).map(|place| root.remove(place))
        };
        let (management, cluster) = (take("management"), take("cluster"));
        // These have no default that a line could show; examples follow at the end.
        for limits in ["limits", "limit", "allow", "deny"] {
            take(limits);
        }
        [
            Self { table: None, keys: root },
            Self { table: management, keys: keys::<ManagementArgs>() },
            Self { table: cluster, keys: keys::<ClusterArgs>() },
        ]
    }

    /// What one of its keys is called where keys have one name.
    fn name_of(&self, key: &Key) -> String {
        self.table.as_ref().map_or(key.name.into(), |table| name_of(table.name, key.name))
    }
}

/// The options of `limiter run`.
fn options() -> Command {
    RunArgs::augment_args(Command::new("run"))
}

fn option<'a>(options: &'a Command, name: &str) -> Option<&'a Arg> {
    options.get_arguments().find(|arg| arg.get_id() == name)
}

/// A file with every key, its default and what it means; each key is commented out.
pub fn default_file() -> String {
    let options = options();
    let live = format!(
        "Limits, lists, {} change at once, other keys with the next start of the daemon.",
        LIVE.join(", ")
    );
    let mut file = wrapped(&format!("{HEADER}\n\n{live}"), "# ");
    for section in Section::all() {
        if let Some(table) = &section.table {
            file += &format!("\n{}#[{}]\n", wrapped(&table.meaning(None), "# "), table.name);
        }
        for key in &section.keys {
            let meaning = key.meaning(option(&options, &section.name_of(key)));
            file += &format!("\n{}#{} = {}\n", wrapped(&meaning, "# "), key.name, key.value());
        }
    }
    file + "\n" + EXAMPLES
}

/// [`default_file`] with all keys and examples in force.
// For tests: each line that an operator may uncomment has to be one that the daemon takes.
pub fn example() -> String {
    let in_force = |line: &str| match line.strip_prefix('#') {
        // A key that is commented out has no space after the mark, a comment has.
        Some(rest) if rest.starts_with(|c: char| !c.is_whitespace() && c != '#') => rest.to_owned(),
        _ => line.to_owned(),
    };
    default_file().lines().map(in_force).collect::<Vec<_>>().join("\n") + "\n"
}

/// The reference of the configuration, in Markdown.
pub fn reference() -> String {
    let options = options();
    let mut page = wrapped(INTRODUCTION, "");
    for section in Section::all() {
        page += &match &section.table {
            None => "\n## Keys\n".to_owned(),
            Some(table) => {
                format!("\n## `[{}]`\n\n{}", table.name, wrapped(&table.meaning(None), ""))
            }
        };
        for key in &section.keys {
            let name = section.name_of(key);
            let meaning = key.meaning(option(&options, &name));
            let change = if LIVE.contains(&&*name) { "at once" } else { "restart" };
            page += &format!(
                "\n### `{}`\n\n{}\n| flag | variable | type | default | change |\n|---|---|---|---|---|\n\
                 | `{}` | `{}` | {} | {} | {change} |\n",
                key.name,
                wrapped(&meaning, ""),
                Flag(&name),
                Variable(&name),
                key.kind(),
                key.default(),
            );
        }
    }
    page += &wrapped(
        "\n## Limits and lists\n\nThey change at once. `default` of `[limits]` is a rate, or a table with the keys of \
         `[[limit]]` from `rate` on.",
        "",
    );
    for (title, keys) in [
        ("[limits]", keys::<LimitsTable>()),
        ("[[limit]]", keys::<LimitTable>()),
        ("ban = { … }", keys::<BanInput>()),
        ("[[allow]] and [[deny]]", keys::<ListTable>()),
    ] {
        page += &format!("\n### `{title}`\n\n| key | meaning |\n|---|---|\n");
        for key in keys {
            let required = if key.is_required { " Required." } else { "" };
            page += &format!("| `{}` | {}{required} |\n", key.name, key.paragraphs().0.join(" "));
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_have_every_key_of_limits_and_lists() {
        let [limits, limit, ban, list] =
            [keys::<LimitsTable>(), keys::<LimitTable>(), keys::<BanInput>(), keys::<ListTable>()];
        for key in limits.iter().chain(&limit).chain(&ban).chain(&list) {
            let found = EXAMPLES.contains(&format!("{} = ", key.name));
            assert!(found && key.property["description"].is_string(), "{}", key.name);
        }
    }

    #[test]
    fn lines_are_wrapped_and_keep_their_prefix() {
        let text = format!("{}\n\nlast", "word ".repeat(50).trim_end());
        let wrapped = wrapped(&text, "# ");
        assert!(wrapped.lines().all(|line| line.starts_with('#') && line.len() <= WIDTH));
        assert!(wrapped.ends_with("word\n#\n# last\n"), "{wrapped}");
        let words = wrapped.matches("word").count();
        assert_eq!((words, wrapped.lines().count()), (50, 5));
    }

    #[test]
    fn values_are_written_as_in_toml() {
        let value = |text| literal(&serde_json::from_str(text).unwrap());
        assert_eq!(value("2.5e-5"), "0.000025");
        assert_eq!(value("[\"a\", 1, true]"), "[\"a\", 1, true]");
    }
}
