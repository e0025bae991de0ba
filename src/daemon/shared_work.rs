//! Runs work once for all concurrent callers.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

/// At most one run at a time. Callers that come during a run share the next run, so that no result is older than its request.
pub(super) struct SharedWork<T> {
    runs: Mutex<Runs>,
    ended: watch::Sender<(u64, Option<T>)>,
}

#[derive(Default)]
struct Runs {
    begun: u64,
    is_running: bool,
    another: bool,
}

impl<T: Clone + Send + Sync + 'static> SharedWork<T> {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(SharedWork { runs: Mutex::default(), ended: watch::Sender::new((0, None)) })
    }

    fn runs(&self) -> MutexGuard<'_, Runs> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The result of a run that begins after this call. The run goes on when this future is dropped.
    pub(super) async fn run<W, F>(self: &Arc<Self>, work: W) -> Option<T>
    where
        W: Fn() -> F + Send + Sync + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let mut ended = self.ended.subscribe();
        let number = {
            let mut runs = self.runs();
            if runs.is_running {
                runs.another = true;
                runs.begun + 1
            } else {
                runs.is_running = true;
                runs.begun += 1;
                tokio::spawn(self.clone().work(runs.begun, work));
                runs.begun
            }
        };
        ended.wait_for(|(done, _)| *done >= number).await.ok()?.1.clone()
    }

    async fn work<W, F>(self: Arc<Self>, mut number: u64, work: W)
    where
        W: Fn() -> F + Send + Sync,
        F: Future<Output = T> + Send + 'static,
    {
        loop {
            let result = work().await;
            self.ended.send_replace((number, Some(result)));
            let mut runs = self.runs();
            if !std::mem::take(&mut runs.another) {
                runs.is_running = false;
                return;
            }
            runs.begun += 1;
            number = runs.begun;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::sync::Semaphore;

    #[test]
    fn all_who_ask_meanwhile_share_the_next_run() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (shared, runs) = (SharedWork::new(), Arc::new(AtomicUsize::new(0)));
        // A run ends when the test lets it.
        let (asked, may_end) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
        let ask = || {
            let (shared, runs, asked, may_end) =
                (shared.clone(), runs.clone(), asked.clone(), may_end.clone());
            async move {
                let work = move || {
                    let (runs, may_end) = (runs.clone(), may_end.clone());
                    async move {
                        let number = runs.fetch_add(1, Ordering::Relaxed);
                        may_end.acquire().await.unwrap().forget();
                        number
                    }
                };
                asked.fetch_add(1, Ordering::Relaxed);
                shared.run(work).await
            }
        };
        runtime.block_on(async {
            let first = tokio::spawn(ask());
            while runs.load(Ordering::Relaxed) == 0 {
                tokio::task::yield_now().await;
            }
            let others: Vec<_> = (0..1000).map(|_| tokio::spawn(ask())).collect();
            // On one thread a caller that has been counted has asked, too.
            while asked.load(Ordering::Relaxed) <= others.len() {
                tokio::task::yield_now().await;
            }
            may_end.add_permits(1);
            assert_eq!(first.await.unwrap(), Some(0));
            may_end.add_permits(1);
            for other in others {
                assert_eq!(other.await.unwrap(), Some(1));
            }
            may_end.add_permits(1);
            assert_eq!(ask().await, Some(2));
        });
    }
}
