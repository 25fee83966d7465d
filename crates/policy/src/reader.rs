//! Reading tables of a policy file key by key, so that every fault is told, each with its line.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use serde::Serialize;
use tabane_base::Quantity;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// One thing that is wrong in a policy file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// Where, counted from 1.
    pub line: usize,
    /// What is wrong, by key, and what was expected.
    pub what: String,
}

/// Collects faults while a file is read.
pub(crate) struct Reader<'t> {
    text: &'t str,
    pub(crate) faults: Vec<Fault>,
    /// What stands in a file beside the policy's.
    read_file: ReadFile<'t>,
    /// The files that were named.
    pub(crate) files: BTreeSet<String>,
}

/// Gives the text of a list by the name of its file, or says why there is none.
pub(crate) type ReadFile<'t> = &'t mut dyn FnMut(&str) -> Result<String, String>;

/// Files with lists that one policy may name.
const MAX_FILES: usize = 32;

/// One table; each key is taken out as it is understood, what is left nobody knows.
pub(crate) struct Fields<'i> {
    pub(crate) line: usize,
    table: DeTable<'i>,
}

impl<'t> Reader<'t> {
    pub(crate) fn new(text: &'t str, read_file: ReadFile<'t>) -> Self {
        Self {
            text,
            faults: Vec::new(),
            read_file,
            files: BTreeSet::new(),
        }
    }

    fn line(&self, span: &Range<usize>) -> usize {
        let before = &self.text.as_bytes()[..span.start.min(self.text.len())];
        1 + before.iter().filter(|byte| **byte == b'\n').count()
    }

    /// A place where the file is no TOML.
    pub(crate) fn syntax(&mut self, span: Option<Range<usize>>, message: &str) {
        let line = span.map_or(1, |span| self.line(&span));
        self.fault(line, message);
    }

    pub(crate) fn fault(&mut self, line: usize, what: impl Into<String>) {
        let what = what.into();
        self.faults.push(Fault { line, what });
    }

    /// The tables written as `[[name]]`.
    pub(crate) fn tables<'i>(&mut self, name: &str, file: &mut DeTable<'i>) -> Vec<Fields<'i>> {
        let Some(value) = file.remove(name) else {
            return Vec::new();
        };
        let line = self.line(&value.span());
        let DeValue::Array(entries) = value.into_inner() else {
            self.fault(line, format!("{name}: write each as [[{name}]]"));
            return Vec::new();
        };
        let mut tables = Vec::new();
        for entry in entries {
            let line = self.line(&entry.span());
            match entry.into_inner() {
                DeValue::Table(table) => tables.push(Fields { line, table }),
                _ => self.fault(line, format!("{name}: write each as [[{name}]]")),
            }
        }
        tables
    }

    /// Whatever was not taken out is unknown.
    pub(crate) fn finish(&mut self, table: &DeTable<'_>, known: &[&str]) {
        for (key, _) in table.iter() {
            let line = self.line(&key.span());
            let (key, known) = (key.get_ref(), known.join(", "));
            self.fault(line, format!("{key}: unknown key; expected one of {known}"));
        }
    }

    pub(crate) fn finish_fields(&mut self, fields: &Fields<'_>, known: &[&str]) {
        self.finish(&fields.table, known);
    }

    fn take<'i>(&mut self, fields: &mut Fields<'i>, key: &str) -> Option<(usize, DeValue<'i>)> {
        let value: Spanned<DeValue<'i>> = fields.table.remove(key)?;
        Some((self.line(&value.span()), value.into_inner()))
    }

    /// What `read` makes of the value; a fault where it makes nothing of it.
    pub(crate) fn value<T>(
        &mut self,
        fields: &mut Fields<'_>,
        key: &str,
        expected: &str,
        read: impl FnOnce(&DeValue<'_>) -> Option<T>,
    ) -> Option<T> {
        let (line, value) = self.take(fields, key)?;
        let result = read(&value);
        if result.is_none() {
            let shown = show(&value);
            self.fault(line, format!("{key} = {shown}: expected {expected}"));
        }
        result
    }

    pub(crate) fn text(&mut self, fields: &mut Fields<'_>, key: &str) -> Option<String> {
        self.value(fields, key, "a text in quotes", |value| {
            value.as_str().map(str::to_owned)
        })
    }

    pub(crate) fn flag(&mut self, fields: &mut Fields<'_>, key: &str) -> Option<bool> {
        self.value(fields, key, "true or false", |value| value.as_bool())
    }

    pub(crate) fn quantity<Q: Quantity>(
        &mut self,
        fields: &mut Fields<'_>,
        key: &str,
    ) -> Option<Q> {
        self.value(fields, key, Q::EXPECTED, |value| Q::parse(value.as_str()?))
    }

    /// Lists that stand in files of these names; `None` where the key is missing.
    pub(crate) fn listed<T>(
        &mut self,
        fields: &mut Fields<'_>,
        key: &str,
        parse: impl Fn(&str) -> Result<T, (usize, String)>,
    ) -> Option<Vec<(String, Arc<T>)>> {
        let line = fields.table.get(key).map(|value| self.line(&value.span()));
        let expected = "the name of a file beside this one, without a directory";
        let names = self.list(fields, key, expected, file_name)?;
        let line = line.unwrap_or(fields.line);
        let mut lists = Vec::new();
        for name in names {
            self.files.insert(name.clone());
            if self.files.len() > MAX_FILES {
                self.fault(line, format!("{key}: more than {MAX_FILES} files"));
                return Some(lists);
            }
            let text = (self.read_file)(&name);
            let parsed = text.and_then(|text| {
                parse(&text).map_err(|(place, what)| format!("line {place}: {what}"))
            });
            match parsed {
                Ok(list) => lists.push((name, Arc::new(list))),
                Err(what) => self.fault(line, format!("{key} = {name:?}: {what}")),
            }
        }
        Some(lists)
    }

    /// One value or a list of them; `None` where the key is missing.
    pub(crate) fn list<T>(
        &mut self,
        fields: &mut Fields<'_>,
        key: &str,
        expected: &str,
        read: impl Fn(&DeValue<'_>) -> Option<T>,
    ) -> Option<Vec<T>> {
        let (line, value) = self.take(fields, key)?;
        let DeValue::Array(values) = &value else {
            let one = read(&value);
            if one.is_none() {
                let shown = show(&value);
                self.fault(line, format!("{key} = {shown}: expected {expected}"));
            }
            return Some(one.into_iter().collect());
        };
        let mut list = Vec::new();
        for value in values {
            match read(value.get_ref()) {
                Some(one) => list.push(one),
                None => {
                    let (line, shown) = (self.line(&value.span()), show(value.get_ref()));
                    self.fault(line, format!("{key} = {shown}: expected {expected}"));
                }
            }
        }
        Some(list)
    }
}

/// A file in the same directory, whose changes are seen where the policy's own are.
fn file_name(value: &DeValue<'_>) -> Option<String> {
    let name = value.as_str()?;
    let fits = !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\0']);
    fits.then(|| name.to_owned())
}

/// A whole number that fits `T`.
pub(crate) fn number<T: TryFrom<u64>>(value: &DeValue<'_>) -> Option<T> {
    let digits = value.as_integer()?;
    let number = u64::from_str_radix(digits.as_str(), digits.radix()).ok()?;
    T::try_from(number).ok()
}

/// A number with or without a point.
pub(crate) fn share(value: &DeValue<'_>) -> Option<f64> {
    let digits = value.as_float().map(|float| float.as_str());
    let digits = digits.or_else(|| Some(value.as_integer()?.as_str()));
    digits?.parse().ok()
}

fn show(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("{text:?}"),
        DeValue::Integer(number) => number.to_string(),
        DeValue::Float(number) => number.to_string(),
        DeValue::Boolean(flag) => flag.to_string(),
        DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => {
            format!("({})", value.type_str())
        }
    }
}
