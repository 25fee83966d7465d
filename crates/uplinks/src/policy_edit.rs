//! Changing one entry of a policy file's text; everything else in it, comments too, stays as it is.
//!
//! Reads and writes no file: `tabane policy set` and the dashboard's form do.

use anyhow::{Context, Result, bail};
use tabane_control::LinkEntry;
use tabane_policy::Policy;
use toml_edit::{ArrayOfTables, Document, DocumentMut, Item, Table, Value};

/// Which links an entry is for. One for links of a kind among them is another one.
#[derive(Debug, Clone, Copy)]
pub struct LinkSelector<'a> {
    /// One link's, or all links'.
    pub name: Option<&'a str>,
    /// A kind of links, or every kind.
    pub kind: Option<&'a str>,
}

/// Keys with what they are to be; `None`: not there.
pub type Values = Vec<(&'static str, Option<Value>)>;

/// All that an entry says, and what it does not say.
pub fn values(entry: &LinkEntry) -> Values {
    let text = |text: &Option<String>| text.as_deref().map(Value::from);
    vec![
        ("use", text(&entry.usage)),
        ("weight", entry.weight.map(Value::from)),
        ("priority", entry.priority.map(Value::from)),
        ("metered", entry.metered.map(Value::from)),
        ("budget", text(&entry.budget)),
        ("budget-from", entry.budget_from.map(Value::from)),
        ("down", text(&entry.down)),
        ("up", text(&entry.up)),
    ]
}

/// The entries of a text; none where it is not sound.
pub fn entries(text: &str) -> Vec<LinkEntry> {
    if Policy::parse(text).is_err() {
        return Vec::new();
    }
    let document = Document::parse(text).ok();
    let links = document.as_ref().and_then(|document| document.get("link"));
    let tables = links.and_then(Item::as_array_of_tables).into_iter();
    tables.flatten().map(|table| entry(text, table)).collect()
}

fn entry(file: &str, table: &Table) -> LinkEntry {
    let text = |key| Some(table.get(key)?.as_str()?.to_owned());
    let number = |key| table.get(key)?.as_integer();
    let whole = |it: &Item| it.as_integer().map(|it| it as f64);
    let weight = table.get("weight");
    LinkEntry {
        name: text("name"),
        kind: text("kind"),
        usage: text("use"),
        // A sound one is 0, 1 or between them.
        weight: weight.and_then(|it| it.as_float().or_else(|| whole(it))),
        priority: number("priority"),
        metered: table.get("metered").and_then(Item::as_bool),
        budget: text("budget"),
        budget_from: number("budget-from"),
        down: text("down"),
        up: text("up"),
        line: table
            .span()
            .map(|span| 1 + file[..span.start].matches('\n').count()),
    }
}

/// Changes the entry, or puts a new one in front of all others, so that it decides.
pub fn set(text: &str, selector: LinkSelector<'_>, values: Values) -> Result<String> {
    let mut document: DocumentMut = text.parse()?;
    let entries = entries_of(&mut document)?;
    match position(entries, selector).and_then(|place| entries.get_mut(place)) {
        Some(entry) => fill(entry, values),
        None => {
            let mut entry = Table::new();
            let given = [("name", selector.name), ("kind", selector.kind)];
            if given.iter().all(|(_, value)| value.is_none()) {
                bail!("which links? `*` is all");
            }
            fill(
                &mut entry,
                given.map(|(key, it)| (key, it.map(Value::from))).into(),
            );
            fill(&mut entry, values);
            let mut all = ArrayOfTables::new();
            all.push(entry);
            entries.iter().for_each(|entry| all.push(unplaced(entry)));
            *entries = all;
        }
    }
    sound(&document)
}

/// Takes the entry out.
pub fn unset(text: &str, selector: LinkSelector<'_>) -> Result<String> {
    let mut document: DocumentMut = text.parse()?;
    let entries = entries_of(&mut document)?;
    let links = selector.name.unwrap_or("*");
    let place = position(entries, selector)
        .with_context(|| format!("nothing is set for '{links}'; `tabane policy` shows what is"))?;
    entries.remove(place);
    sound(&document)
}

fn sound(document: &DocumentMut) -> Result<String> {
    let text = document.to_string();
    Policy::parse(&text)?;
    Ok(text)
}

fn entries_of(document: &mut DocumentMut) -> Result<&mut ArrayOfTables> {
    let none = Item::ArrayOfTables(ArrayOfTables::new());
    let links = document.entry("link").or_insert(none);
    let links = links.as_array_of_tables_mut();
    links.context("write each link as [[link]] first")
}

fn position(entries: &ArrayOfTables, selector: LinkSelector<'_>) -> Option<usize> {
    let says = |entry: &Table, key| entry.get(key).and_then(Item::as_str).map(str::to_owned);
    entries.iter().position(|entry| {
        says(entry, "name").as_deref() == selector.name
            && says(entry, "kind").as_deref() == selector.kind
    })
}

/// What stays as it was keeps its spelling, and what changes the comment behind it.
fn fill(entry: &mut Table, values: Values) {
    for (key, value) in values {
        let Some(mut value) = value else {
            entry.remove(key);
            continue;
        };
        match entry.get_mut(key).and_then(Item::as_value_mut) {
            Some(old) if is_same(old, &value) => {}
            Some(old) => {
                *value.decor_mut() = old.decor().clone();
                *old = value;
            }
            None => {
                entry.insert(key, value.into());
            }
        }
    }
}

fn is_same(old: &Value, new: &Value) -> bool {
    let number = |value: &Value| {
        let whole = value.as_integer().map(|it| it as f64);
        value.as_float().or(whole)
    };
    (old.as_str(), old.as_bool(), number(old)) == (new.as_str(), new.as_bool(), number(new))
}

/// A copy that is written where it stands in the list, not where it stood in the file.
fn unplaced(entry: &Table) -> Table {
    let mut copy = entry.clone();
    copy.set_position(None);
    copy
}
