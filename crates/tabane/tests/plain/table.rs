//! What programs saw, cell by cell, and where it differs from the plain machine.
//!
//! Which cells may differ is written in `docs/bond.md`, for people, and read from there.

use std::collections::BTreeSet;
use std::fmt::Write;

use serde::Deserialize;

/// More would be another machine than the plain one.
const DIFFERENCES_MAX: usize = 5;
const HEADING: &str = "## Where programs see a difference";
const BOND: &str = include_str!("../../../../docs/bond.md");

/// One cell in one column.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Cell {
    #[serde(rename = "cell")]
    pub(crate) name: String,
    is: String,
    remark: String,
}

/// All columns, the plain one first. `-` is where a cell says nothing of a column.
#[derive(Default)]
pub(crate) struct Table {
    columns: Vec<(&'static str, Vec<Cell>)>,
}

impl Table {
    pub(crate) fn add(&mut self, column: &'static str, cells: Vec<Cell>) {
        match self.columns.iter_mut().find(|(name, _)| *name == column) {
            Some((_, all)) => all.extend(cells),
            None => self.columns.push((column, cells)),
        }
    }

    fn cell(&self, column: usize, name: &str) -> Option<&Cell> {
        self.columns[column].1.iter().find(|cell| cell.name == name)
    }

    /// The columns that say otherwise than the plain one, with what they say.
    fn differing(&self, plain: &Cell) -> Vec<(&'static str, String)> {
        let others = (1..self.columns.len()).map(|column| {
            let found = self.cell(column, &plain.name);
            let said = found.map_or("nothing", |cell| &cell.is);
            (self.columns[column].0, said.to_owned())
        });
        others
            .filter(|(_, said)| *said != "-" && *said != plain.is)
            .collect()
    }

    /// One line per cell: what it is plainly, with the columns' remarks, then whoever differs.
    pub(crate) fn print(&self) {
        let (_, plain) = &self.columns[0];
        for cell in plain {
            let mut line = format!("{:<64} {}", cell.name, cell.is);
            for (name, said) in self.differing(cell) {
                write!(line, "\n{:>64} {said}", format!("{name}:")).unwrap();
            }
            for column in 0..self.columns.len() {
                let found = self.cell(column, &cell.name).map(|cell| &cell.remark);
                if let Some(remark) = found.filter(|remark| !remark.is_empty()) {
                    let name = self.columns[column].0;
                    write!(line, "\n{:>64} ({remark})", format!("{name}:")).unwrap();
                }
            }
            println!("{line}");
        }
    }

    /// Asserts that all cells are as plainly, but those that the guide names, and that those do
    /// differ. Not every cell there is need be in the table.
    pub(crate) fn assert_plain(&self, is_whole: bool) {
        let mut documented = documented();
        documented.retain(|name| is_whole || self.cell(0, name).is_some());
        assert!(documented.len() <= DIFFERENCES_MAX, "{documented:?}");
        let mut wrong = String::new();
        let mut differing = BTreeSet::new();
        for cell in &self.columns[0].1 {
            let others = self.differing(cell);
            if !others.is_empty() && !documented.contains(&cell.name) {
                writeln!(
                    wrong,
                    "{}: plainly {:?}, but {others:?}",
                    cell.name, cell.is
                )
                .unwrap();
            }
            if !others.is_empty() {
                differing.insert(cell.name.clone());
            }
        }
        for name in documented.difference(&differing) {
            writeln!(wrong, "{name}: is as plainly; docs/bond.md says otherwise").unwrap();
        }
        let cells = self.columns[0].1.len();
        println!("{cells} cells, {} differ", differing.len());
        assert!(
            wrong.is_empty(),
            "sockets that are not as plain ones:\n{wrong}"
        );
    }
}

/// The cells that the guide says differ: the first column of its table, in backquotes.
fn documented() -> BTreeSet<String> {
    let Some((_, section)) = BOND.split_once(HEADING) else {
        panic!("docs/bond.md has no section {HEADING:?}");
    };
    let section = section.split("\n## ").next().unwrap_or_default();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.filter_map(|row| Some(row.split_once('`')?.0.to_owned()))
        .collect()
}
