#![allow(non_snake_case)]
extern crate HPGO;
use HPGO::environment::device::Devices;
use HPGO::model::model::Model;
use HPGO::model::model_perf::{ModelPerf, ModelState};
use HPGO::orchestration::orchestrate::SyncOrchestrate;
use HPGO::orchestration::Orchestrate;
use std::io::{self, BufRead};

fn cpu_s() -> f64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse::<f64>().unwrap() / 1e9
}

// One line a job: devices batch | seconds | output bytes | parameter bytes
fn main() {
    for line in io::stdin().lock().lines() {
        let line = line.unwrap();
        let parts: Vec<Vec<f64>> = line
            .split('|')
            .map(|p| p.split_whitespace().map(|x| x.parse().unwrap()).collect())
            .collect();
        let n = parts[1].len();
        let between = |v: &Vec<f64>| -> Vec<Vec<f64>> {
            (0..n).map(|i| (0..n).map(|j| if j < i { -1.0 } else { v[i..j + 1].iter().sum() }).collect()).collect()
        };
        let states: Vec<ModelState> = (0..n).map(|i| ModelState {
            id: None, name: None, desc: None, compute_time: parts[1][i], activation_size: parts[2][i],
            output_activation_size: parts[2][i], parameter_size: parts[3][i], stage_id: None,
        }).collect();
        let perf = ModelPerf {
            compute_times: between(&parts[1]), activation_sizes: between(&parts[2]),
            parameter_sizes: between(&parts[3]), output_activation_sizes: parts[2].clone(),
            all_predecessor_ids: (0..n).map(|j| (0..j as u32).collect()).collect(),
        };
        let batch = parts[0][1] as u32;
        let gpus = parts[0][0] as u32;
        let start = cpu_s();
        let model = Model::new_from_model_perf(perf, states, batch, batch);
        let devices = Devices::new(gpus, (1..gpus + 1).collect());
        let mut planner = SyncOrchestrate::new_from_model_device(model, devices);
        planner.orchestrate();
        let mut best = 0;
        for i in 0..planner.res.len() { if planner.res[i].speedup > planner.res[best].speedup { best = i; } }
        let r = &planner.res[best];
        let stages: Vec<String> = r.stages.iter().map(|s| format!("[{},{},{}]", s.0, s.1, s.2)).collect();
        eprintln!("{{\"speedup\":{},\"rp\":{},\"stages\":[{}],\"cpu_s\":{:.6}}}", r.speedup, r.rp, stages.join(","), cpu_s() - start);
    }
}
