//! What the Web SHAKE experiments show: figures 6 to 9.

use tabane_base::{Bytes, Rate, Seed};
use tabane_ranges::Rule;

use super::{FAR, NEAR, SIZES, SMALL, phs, throughput};
use crate::figure::{Curve, Figure, Panel, Style, Table};
use crate::papers::report::{Report, none};
use crate::web::WebLink;

/// The cluster's network where nothing else is said.
const LAN: Rate = Rate::from_mbps(11);

/// One curve: what fetches, and its throughput by size.
struct Measured {
    name: &'static str,
    kbps: Vec<f64>,
}

fn measure(
    name: &'static str,
    links: &[WebLink],
    rule: Rule,
    sizes: &[u64],
    seed: Seed,
) -> Measured {
    let kbps = sizes
        .iter()
        .map(|kilo| throughput(links, rule, *kilo, seed));
    Measured {
        name,
        kbps: kbps.collect(),
    }
}

fn first_partial(kilo: u64) -> Rule {
    Rule::FirstPartial {
        threshold: Bytes::kilo(kilo),
    }
}

fn settings(delays: &str) -> Vec<String> {
    vec![
        "links of 64 kbit/s; TCP Reno with a window of 32 kB; heads of 300 bytes".to_owned(),
        format!(
            "chosen, because the paper does not tell: {delays}, queues of 80 kB, so that the \
             windows of two connections fit"
        ),
        "the paper's rules: a connection for each request, equal parts; the first request by the \
         receiver's own link"
            .to_owned(),
    ]
}

pub(crate) fn experiment1(seed: Seed) -> Report {
    const TITLE: &str = "Web throughput by file size over two links, Web SHAKE figure 6";
    let own = phs(NEAR, None);
    let pair = |lan| [own.clone(), phs(NEAR, Some(lan))];
    let plain = measure(
        "one link",
        std::slice::from_ref(&own),
        Rule::Tabane,
        &SIZES,
        seed,
    );
    let head = |name, lan| measure(name, &pair(lan), Rule::FirstHead, &SIZES, seed);
    let curves = vec![
        plain,
        head("F-H, LAN 100 Mbit/s", Rate::from_mbps(100)),
        head("F-H, LAN 11 Mbit/s", LAN),
        head("F-H, LAN 1 Mbit/s", Rate::from_mbps(1)),
        measure(
            "tabane, LAN 11 Mbit/s",
            &pair(LAN),
            Rule::Tabane,
            &SIZES,
            seed,
        ),
    ];
    let paper = |kilo: u64| (kilo == 1_000).then_some("F-H 1.9 times one link");
    Report {
        title: TITLE,
        settings: settings("60 ms one way"),
        table: table(&SIZES, &curves, "kbit/s", paper),
        figure: figure(TITLE, vec![panel(&SIZES, &curves, THROUGHPUT)]),
        notes: vec![
            "The cluster's network makes no difference while it is much faster than the links, as \
             in the paper."
                .to_owned(),
        ],
    }
}

pub(crate) fn experiment2(seed: Seed) -> Report {
    const TITLE: &str = "F-H against F-P by threshold, Web SHAKE figure 7";
    let own = phs(FAR[0], None);
    let pair = [own.clone(), phs(FAR[0], Some(LAN))];
    let plain = measure("one link", &[own], Rule::Tabane, &SMALL, seed);
    let of = |name, rule| ratio(measure(name, &pair, rule, &SMALL, seed), &plain);
    let curves = vec![
        of("F-H", Rule::FirstHead),
        of("F-P 10 kB", first_partial(10)),
        of("F-P 20 kB", first_partial(20)),
        of("F-P 30 kB", first_partial(30)),
        of("tabane", Rule::Tabane),
    ];
    let paper = |kilo: u64| match kilo {
        0..64 => Some("F-H below 1, F-P 20 kB not"),
        64 => Some("F-H about 1"),
        _ => Some("all above 1"),
    };
    Report {
        title: TITLE,
        settings: settings("150 ms one way"),
        table: table(&SMALL, &curves, "of one link", paper),
        figure: figure(TITLE, vec![panel(&SMALL, &curves, RATIO)]),
        notes: Vec::new(),
    }
}

pub(crate) fn experiment3(seed: Seed) -> Report {
    const TITLE: &str = "Web throughput over one to three links, Web SHAKE figures 8 and 9";
    let link = |index: usize| phs(FAR[index], (index > 0).then_some(LAN));
    let two = [link(0), link(1)];
    let other = [link(0), link(2)];
    let three = [link(0), link(1), link(2)];
    let plain = measure("one link", &[link(0)], Rule::Tabane, &SIZES, seed);
    let of = |name, links: &[WebLink], rule| measure(name, links, rule, &SIZES, seed);
    let partial = first_partial(20);
    let divided = vec![
        of("F-H, 2 links (AP2)", &two, Rule::FirstHead),
        of("F-H, 2 links (AP3)", &other, Rule::FirstHead),
        of("F-H, 3 links", &three, Rule::FirstHead),
        of("F-P 20 kB, 2 links (AP2)", &two, partial),
        of("F-P 20 kB, 3 links", &three, partial),
        of("tabane, 2 links (AP2)", &two, Rule::Tabane),
        of("tabane, 3 links", &three, Rule::Tabane),
    ];
    let mut ratios: Vec<Measured> = divided
        .iter()
        .map(|measured| Measured {
            name: measured.name,
            kbps: quotients(&measured.kbps, &plain.kbps),
        })
        .collect();
    let mut speeds = vec![plain];
    speeds.extend(divided);
    let paper = |kilo: u64| match kilo {
        0..64 => Some("F-H below 1, F-P not"),
        1_000 => Some("F-H 1.9 and 2.8"),
        _ => None,
    };
    let table = table(&SIZES, &ratios, "of one link", paper);
    // AP3 with two links is near AP2: the pictures have a colour less than the table curves.
    speeds.remove(2);
    ratios.remove(1);
    let mut panels = vec![panel(&SIZES, &speeds, THROUGHPUT)];
    // One colour for one sender in both panels.
    let mut second = panel(&SIZES, &ratios, RATIO);
    second.curves.insert(0, Curve::thinned("", &[], 1));
    panels.push(second);
    Report {
        title: TITLE,
        settings: settings("150 (AP1), 200 (AP2) and 250 ms (AP3) one way"),
        table,
        figure: figure(TITLE, panels),
        notes: Vec::new(),
    }
}

fn ratio(measured: Measured, plain: &Measured) -> Measured {
    Measured {
        kbps: quotients(&measured.kbps, &plain.kbps),
        ..measured
    }
}

fn quotients(above: &[f64], below: &[f64]) -> Vec<f64> {
    above.iter().zip(below).map(|(a, b)| a / b).collect()
}

fn table(
    sizes: &[u64],
    curves: &[Measured],
    unit: &str,
    paper: impl Fn(u64) -> Option<&'static str>,
) -> Table {
    let names = curves.iter().map(|curve| format!("{}, {unit}", curve.name));
    let names: Vec<String> = names.collect();
    let mut headings = vec!["file, kB", "paper"];
    headings.extend(names.iter().map(String::as_str));
    let mut table = Table::new(&headings);
    for (row, kilo) in sizes.iter().enumerate() {
        let mut cells = vec![
            kilo.to_string(),
            paper(*kilo).map_or_else(none, str::to_owned),
        ];
        cells.extend(curves.iter().map(|curve| format!("{:.2}", curve.kbps[row])));
        table.row(cells);
    }
    table
}

const THROUGHPUT: &str = "throughput, kbit/s";
const RATIO: &str = "throughput, of one link";

fn panel(sizes: &[u64], curves: &[Measured], y: &'static str) -> Panel {
    let doublings = |kilo: &u64| (*kilo as f64).log2();
    let curve = |measured: &Measured| Curve {
        name: measured.name.to_owned(),
        style: Style::Line,
        points: sizes
            .iter()
            .map(doublings)
            .zip(measured.kbps.iter().copied())
            .collect(),
    };
    Panel {
        x: "file: how many times 1 kB is doubled",
        y,
        curves: curves.iter().map(curve).collect(),
        ..Panel::default()
    }
}

fn figure(title: &str, panels: Vec<Panel>) -> Figure {
    Figure {
        title: title.to_owned(),
        subtitle: "links of 64 kbit/s".to_owned(),
        panels,
    }
}
