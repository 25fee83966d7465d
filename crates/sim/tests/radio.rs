//! Scratch.
use tabane_base::*;
use tabane_core::ControllerKind;
use tabane_netem::*;
use tabane_sim::*;

fn q(v: &mut Vec<f64>, p: f64) -> f64 {
    v.sort_by(f64::total_cmp);
    v[((v.len() as f64 - 1.0) * p) as usize]
}

#[test]
fn radio() {
    let env = |n: &str, d: &str| std::env::var(n).unwrap_or(d.into());
    let seeds = env("SEEDS", "0..10");
    let (a, b) = seeds.split_once("..").unwrap();
    let (a, b): (u64, u64) = (a.parse().unwrap(), b.parse().unwrap());
    let span = Duration::from_secs(env("SECS", "20").parse().unwrap());
    let kinds = env(
        "KINDS",
        "walk,steps,bursts,handovers,outages,narrow,jitter,drift",
    );
    let verbose = std::env::var("V").is_ok();
    let cache = env("CACHE", "/tmp/radio-cache");
    std::fs::create_dir_all(&cache).unwrap();
    let mut all = vec![];
    for kind in kinds.split(',') {
        let seeds: Vec<u64> = (a..b).collect();
        let mut rows: Vec<(u64, f64, f64, f64, f64, String)> = std::thread::scope(|s| {
            let hs: Vec<_> = (0..2).map(|t| { let seeds = &seeds; let cache=&cache; s.spawn(move || seeds.iter().skip(t).step_by(2).map(|seed| {
                let radio: Radio = format!("{kind}/{seed}").parse().unwrap();
                let run = |k: ControllerKind| -> (f64,f64,f64) {
                    let f = format!("{cache}/{kind}-{seed}-{k}-{}", span.as_secs());
                    if k != ControllerKind::Tabane { if let Ok(t) = std::fs::read_to_string(&f) { let v: Vec<f64> = t.split(' ').map(|x| x.parse().unwrap()).collect(); return (v[0],v[1],v[2]); } }
                    let r = Run::new(vec![radio.link()], k, Seed(*seed), span);
                    let v = (r.goodput.as_mbps_f64(), r.wait_p50.as_secs_f64()*1e3, r.wait_p95.as_secs_f64()*1e3);
                    if k != ControllerKind::Tabane { std::fs::write(&f, format!("{} {} {}", v.0,v.1,v.2)).unwrap(); }
                    v
                };
                let (t, bb, c) = (run(ControllerKind::Tabane), run(ControllerKind::Bbr), run(ControllerKind::Cubic));
                let d = radio.config(Direction::Down);
                let line = format!("{radio:14} {:6.2} Mbit/s {:4.0}ms q{:5} j{:?}{:?} | tab {:6.2} {:5.0} {:5.0} | bbr {:6.2} {:5.0} {:5.0} | cub {:6.2} {:5.0} {:5.0}", d.mean_rate().as_mbps_f64(), d.delay.as_secs_f64()*1e3, d.queue.get()/1000, d.jitter, d.jitter_shape, t.0,t.1,t.2,bb.0,bb.1,bb.2,c.0,c.1,c.2);
                (*seed, t.0/bb.0.max(c.0).max(1e-9), (t.1+1.)/(bb.1+1.), (t.2+1.)/(bb.2+1.), t.2, line)
            }).collect::<Vec<_>>()) }).collect();
            hs.into_iter().flat_map(|h| h.join().unwrap()).collect()
        });
        rows.sort_by(|x, y| x.1.total_cmp(&y.1));
        if verbose {
            for r in rows.iter().take(env("V", "5").parse().unwrap_or(5)) {
                println!("{:.3} w50 {:.2} w95 {:.2} {}", r.1, r.2, r.3, r.5);
            }
        }
        let mut g: Vec<f64> = rows.iter().map(|r| r.1).collect();
        let mut w5: Vec<f64> = rows.iter().map(|r| r.2).collect();
        let mut w9: Vec<f64> = rows.iter().map(|r| r.3).collect();
        println!(
            "{kind:10} of better: mean {:.3} p10 {:.3} p50 {:.3} | wait p50 of bbr: p50 {:.2} p90 {:.2} | wait p95 of bbr: p50 {:.2} p90 {:.2}",
            g.iter().sum::<f64>() / g.len() as f64,
            q(&mut g, 0.1),
            q(&mut g, 0.5),
            q(&mut w5, 0.5),
            q(&mut w5, 0.9),
            q(&mut w9, 0.5),
            q(&mut w9, 0.9)
        );
        all.extend(g);
    }
    println!(
        "all p10 {:.3} p50 {:.3} mean {:.3}",
        q(&mut all, 0.1),
        q(&mut all, 0.5),
        all.iter().sum::<f64>() / all.len() as f64
    );
}
