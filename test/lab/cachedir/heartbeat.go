package cachedir

import "time"

// heartbeatEvery keeps a long step from looking dead; a person gives up after about twice this.
const heartbeatEvery = 15 * time.Second

// Step logs what begins, says every 15 s that it still runs (with status, if that is not nil), and returns a function
// that logs how long it took. The returned function must be called.
func Step(log Logf, status func() string, format string, args ...any) (done func(err error)) {
	began := time.Now()
	log.Printf(format+" …", args...)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(heartbeatEvery)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				detail := ""
				if status != nil {
					detail = ": " + status()
				}
				log.Printf("  still at it after %s%s", time.Since(began).Round(time.Second), detail)
			}
		}
	}()
	return func(err error) {
		close(stop)
		<-stopped
		took := time.Since(began).Round(100 * time.Millisecond)
		if err != nil {
			log.Printf("  gave up after %s", took)
			return
		}
		log.Printf("  done in %s", took)
	}
}
