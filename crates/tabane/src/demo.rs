//! The demonstration: one download by an unmodified curl, over each link alone and over all of them
//! at once, on links of this machine's own making.
//!
//! Owns the order of events and what is said meanwhile. What is set up is `world`'s, what is
//! measured is `download`'s; nothing of it is left when the value of the world is gone.

mod directory;
mod download;
mod process;
mod summary;
mod view;
mod web_server;
mod world;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tabane_base::{Bytes, Rate};
use tabane_netem::{LinkSpec, Scenario};
use tabane_sim::{Download, DownloadFigure};

use summary::EmulatorSummary;
pub(crate) use summary::Summary;
use tabane_store::atomic_file;
pub(crate) use view::{Style, View};
use world::LinkChoice;
pub(crate) use world::World;
pub(crate) use world::curl::require as require_curl;

/// All downloads together, in seconds, so that everything fits into a minute.
const BUDGET: usize = 45;
/// One download, in seconds: long enough for start-up not to rule the mean, short enough to watch.
const USUAL_SECONDS: u32 = 8;

/// More links than this do not fit under the title of the picture.
const DESCRIBED_MAX: usize = 4;

/// What is to be shown.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) scenario: Scenario,
    /// Of each download.
    pub(crate) seconds: u32,
    /// Where the picture goes.
    pub(crate) svg: PathBuf,
}

/// How long each download lasts where nothing is said.
pub(crate) fn usual_seconds(scenario: &Scenario) -> u32 {
    let downloads = scenario.links.len() + 1;
    let fitting = u32::try_from(BUDGET / downloads).unwrap_or(1);
    fitting.clamp(1, USUAL_SECONDS)
}

/// A view of the right size for the plan.
pub(crate) fn view(plan: &Plan, out: Box<dyn std::io::Write>, style: Style) -> View {
    let names = plan.scenario.links.iter().map(|link| link.name.clone());
    let full = plan.scenario.rate_down();
    View::new(out, style, names.collect(), full, plan.seconds)
}

/// Downloads, and draws the picture.
pub(crate) async fn show(plan: &Plan, world: &World, view: &mut View) -> Result<Summary> {
    introduce(plan, world, view)?;
    let mut alone = Vec::new();
    for (index, link) in plan.scenario.links.iter().enumerate() {
        let title = format!("{} alone", link.name);
        alone.push(fetch(plan, world, view, LinkChoice::Alone(index), &title).await?);
    }
    let before = packets(world)?;
    let together = fetch(plan, world, view, LinkChoice::Together, "all at once").await?;
    let health = world.control().snapshot()?.health;
    let packets = packets(world)? - before;
    let sum: u64 = alone.iter().map(|one| one.rate().as_bps()).sum();
    let summary = Summary {
        scenario: plan.scenario.name.clone(),
        world: world.name(),
        reservation: world.reservation().map(str::to_owned),
        seconds: plan.seconds,
        links: Summary::link_summaries(&plan.scenario, &alone, &together),
        sum_bps: sum,
        bond_bps: together.rate().as_bps(),
        bond_share: together.rate().as_bps() as f64 / sum.max(1) as f64,
        bond_bytes: together.received.get(),
        emulator: EmulatorSummary::new(health, packets),
        svg: shown_path(&plan.svg),
    };
    let picture = picture(plan, world, &alone, &together).svg()?;
    atomic_file::write_out(&plan.svg, picture.as_bytes())?;
    conclude(&summary, view)?;
    Ok(summary)
}

fn introduce(plan: &Plan, world: &World, view: &mut View) -> Result<()> {
    if let Some(reservation) = world.reservation() {
        view.say(&format!("Note: {reservation}."))?;
    }
    let links = describe_links(&plan.scenario);
    view.say(&format!("Links, {}: {links}.", world.description()))?;
    view.say(&format!(
        "One TCP connection of an unmodified curl downloads for {} s: over each link alone (by \
         {}), then over all of them (by tabane).\n",
        plan.seconds,
        world.single_transport()
    ))?;
    Ok(())
}

async fn fetch(
    plan: &Plan,
    world: &World,
    view: &mut View,
    way: LinkChoice,
    title: &str,
) -> Result<Download> {
    view.begin(title);
    let download = async {
        let fetch = world.fetch(way, plan.seconds).await?;
        download::run(fetch, world.control(), view).await
    };
    let download = download
        .await
        .with_context(|| format!("{title}: the download failed"))?;
    view.finish(download.rate())?;
    Ok(download)
}

fn conclude(summary: &Summary, view: &mut View) -> Result<()> {
    view.say(&format!("\n{}\n", summary.table()))?;
    view.say(&format!(
        "{} over all links, every byte checked. Picture: {}",
        Bytes::new(summary.bond_bytes),
        summary.svg
    ))?;
    if let Some(warning) = summary.emulator.warning() {
        view.say(&format!("Note: {warning}."))?;
    }
    Ok(())
}

fn picture<'a>(
    plan: &'a Plan,
    world: &'a World,
    alone: &[Download],
    together: &'a Download,
) -> DownloadFigure<'a> {
    let links = &plan.scenario.links;
    let names = links.iter().map(|link| link.name.as_str());
    DownloadFigure {
        title: format!(
            "One download of an unmodified curl over {} links at once",
            links.len()
        ),
        subtitle: if links.len() > DESCRIBED_MAX {
            format!("scenario {}; {}", plan.scenario.name, world.description())
        } else {
            format!(
                "{}; {}",
                describe_links(&plan.scenario),
                world.description()
            )
        },
        alone: names.zip(alone.iter().map(Download::rate)).collect(),
        alone_by: world.single_transport(),
        together,
    }
}

/// Name, rate and one-way delay of each.
fn describe_links(scenario: &Scenario) -> String {
    let describe = |link: &LinkSpec| {
        let rate = trimmed(link.down.mean_rate());
        format!(
            "{} {rate} Mbit/s {} ms",
            link.name,
            link.down.delay.as_secs_f64() * 1e3
        )
    };
    let links: Vec<String> = scenario.links.iter().map(describe).collect();
    links.join(", ")
}

/// In Mbit/s, with as many digits as say something.
fn trimmed(rate: Rate) -> String {
    let text = format!("{:.3}", rate.as_mbps_f64());
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Through all links so far, in both directions.
fn packets(world: &World) -> Result<u64> {
    let snapshot = world.control().snapshot()?;
    let links = snapshot.links.iter();
    Ok(links
        .map(|link| link.down.delivered.packets + link.up.delivered.packets)
        .sum())
}

fn shown_path(path: &Path) -> String {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    whole.display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenarios;

    #[test]
    fn a_demonstration_of_any_size_fits_into_a_minute() {
        let mut scenario = scenarios::load(scenarios::DEFAULT, None).unwrap();
        assert_eq!(usual_seconds(&scenario), 8);
        let link = scenario.links[0].clone();
        for count in 1..=tabane_netem::MAX_LINKS {
            scenario.links = vec![link.clone(); count];
            let seconds = usual_seconds(&scenario);
            let all = seconds as usize * (count + 1);
            assert!(seconds >= 1 && all <= BUDGET, "{count} links: {all} s");
        }
    }

    #[test]
    fn links_are_described_without_idle_digits() {
        let scenario = scenarios::load("unequal", None).unwrap();
        assert_eq!(
            describe_links(&scenario),
            "wifi 50 Mbit/s 10 ms, lte 10 Mbit/s 50 ms"
        );
        assert_eq!(trimmed(Rate::from_bps(5_500_000)), "5.5");
        assert_eq!(trimmed(Rate::from_bps(64_000)), "0.064");
    }
}
